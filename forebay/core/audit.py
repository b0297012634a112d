"""Oracles over a whole scheduler between two calls. Reports, never repairs.

The numbers are those of the pressure cases' section Q: 1 block conservation, 3 never-fit, 4 holder
order, 5 step accounting, 9 identity. The others need a memory or an output to look at and live in
the tests' shadow executor.
"""

from collections import Counter
from collections.abc import Iterator

from forebay.core.effects import Step
from forebay.core.lifecycle import Finished, Loaded, Loading, Queued, Running, Swapped
from forebay.core.policies import Intake
from forebay.core.request import Request
from forebay.core.scheduler import Scheduler


def audit(scheduler: Scheduler) -> list[str]:
    """All violated invariants, as sentences; [] when the world is consistent."""
    return [
        *_blocks(scheduler),
        *_host(scheduler),
        *_queues(scheduler),
        *(fault for req in scheduler.requests.values() for fault in _request(scheduler, req)),
        *_identity(scheduler),
    ]


def audit_step(scheduler: Scheduler, step: Step) -> list[str]:
    """Violations in a step that `plan` just returned (Q5)."""
    faults = []
    limits = scheduler.limits
    if step.num_tokens > limits.max_num_batched_tokens:
        faults.append(f"Q5: {step.num_tokens} tokens exceed {limits.max_num_batched_tokens}")
    running = [seq.id for req in scheduler.rooms.queues.running for seq in req.live]
    if set(running) != scheduler.rooms.actions.batch:
        faults.append(f"Q5: rows {sorted(scheduler.rooms.actions.batch)} but {running} run")
    seats = sum(req.num_seats for req in scheduler.rooms.queues.running)
    if seats > limits.max_num_seqs:
        faults.append(f"Q5: {seats} seats taken of {limits.max_num_seqs}")
    preempted = {event.request_id for event in step.preempted}
    in_step = {join.seq_id for join in step.joined} | {chunk.seq_id for chunk in step.chunks}
    for request in scheduler.requests.values():
        ids = {seq.id for seq in request.sequences}
        if request.id in preempted and (ids & in_step or isinstance(request.state, Running)):
            faults.append(f"Q5: request {request.id} was preempted but left a trace in the step")
    silent = len(running) - len(step.idle) - len(step.chunks)
    silent -= sum(len(fork.children) for fork in step.forks)
    computed = silent + sum(chunk.num_tokens for chunk in step.chunks)
    if computed != step.num_tokens:
        faults.append(f"Q5: rows compute {computed} tokens but the step says {step.num_tokens}")
    return faults


def _blocks(scheduler: Scheduler) -> Iterator[str]:
    kv = scheduler.rooms.kv
    held: Counter[int] = Counter()
    for request in scheduler.requests.values():
        for seq in request.sequences:
            held.update(seq.table.blocks)
            if len(set(seq.table.blocks)) != len(seq.table.blocks):
                yield f"Q1: sequence {seq.id} has a block twice"
    for hold in [*kv.fences.holds, *scheduler.rooms.loads.holds]:
        held.update(hold.blocks)
    for block in range(kv.pool.num_blocks):
        holds = kv.pool.num_holds(block)  # type: ignore[arg-type]  # all ids, by definition
        if holds != held[block]:
            yield f"Q1: block {block} counts {holds} holds, {held[block]} exist"
        if kv.pool.is_free(block) != (holds == 0):  # type: ignore[arg-type]  # as above
            yield f"Q1: block {block} with {holds} holds is in the wrong list"
    gauges = scheduler.gauges()
    parts = gauges.blocks_active + gauges.blocks_fenced + gauges.blocks_cached + gauges.blocks_free
    if parts != gauges.blocks_total:
        yield f"Q1: gauges sum to {parts} of {gauges.blocks_total} blocks"


def _host(scheduler: Scheduler) -> Iterator[str]:
    used: Counter[int] = Counter()
    for request in scheduler.requests.values():
        if isinstance(request.state, Swapped):
            used.update(request.state.host.slots)
    if set(used) != set(scheduler.rooms.kv.host.used) or any(n > 1 for n in used.values()):
        yield "Q1: host slots in use are not those of the swapped requests"


def _queues(scheduler: Scheduler) -> Iterator[str]:
    queues = scheduler.rooms.queues
    yield from (f"queue {name} is out of order" for name in queues.disorder())
    for req in queues.waiting:
        if not isinstance(req.state, Queued | Swapped):
            yield f"request {req.id} waits in state {req.state}"
    for req in queues.parked:
        if not isinstance(req.state, Loading | Loaded):
            yield f"request {req.id} is parked in state {req.state}"
    for req in queues.running:
        if not isinstance(req.state, Running):
            yield f"request {req.id} runs in state {req.state}"


def _request(scheduler: Scheduler, request: Request) -> Iterator[str]:
    limits = scheduler.limits
    if isinstance(request.state, Finished) or not request.live:
        yield f"Q9: request {request.id} has ended but is kept"
    for seq in request.sequences:
        if not 0 <= seq.computed <= seq.total or seq.pending < 0 or seq.total > seq.limit:
            yield f"sequence {seq.id} has impossible counters: {seq}"
        covered = len(seq.table.blocks) * limits.block_size
        if isinstance(request.state, Running | Loading | Loaded):
            if seq.finish is None and covered < seq.computed:
                yield f"Q7: sequence {seq.id} computed {seq.computed} tokens in {covered} slots"
        elif seq.table.blocks:
            yield f"Q4: request {request.id} waits but holds device blocks"
        if seq.finish is not None and seq.table.blocks:
            yield f"Q1: sequence {seq.id} has ended but holds blocks"
    longest = max((seq.known for seq in request.live), default=0)
    branches = len(request.live) if request.forked else request.spec.num_branches
    need = limits.blocks_for_group(request.spec.num_prompt, longest, branches)
    at_limit = all(seq.known >= seq.limit - 1 for seq in request.live)
    judged = limits.rules.intake is Intake.JUDGE
    if judged and need > limits.num_blocks and not at_limit:
        yield f"Q3: request {request.id} needs {need} of {limits.num_blocks} blocks and waits"


def _identity(scheduler: Scheduler) -> Iterator[str]:
    tally, queues = scheduler.tally, scheduler.rooms.queues
    alive = len(queues.waiting) + len(queues.parked) + len(queues.running)
    if tally.requests_arrived != tally.requests_refused + tally.requests_ended + alive:
        yield f"Q9: {tally.requests_arrived} arrived, but not all are accounted for"
