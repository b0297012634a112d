"""Drives a scheduler with a shadow executor through a workload, audited after every call."""

import random
from collections import deque
from dataclasses import dataclass, field, replace

from forebay.block_hash import prompt_hashes
from forebay.core.audit import audit, audit_step
from forebay.core.effects import Capped, Ended, Load, Preempted, Refuse, Step
from forebay.core.events import Abort, Arrive, FinishReason, LoadDone, LoadFailed
from forebay.core.limits import Limits
from forebay.core.request import Request
from forebay.core.scheduler import Scheduler
from forebay.units import Nanos, RequestId, SeqId, branch_of, request_of, seq_id
from tests.support.shadow import ShadowExecutor, Work


@dataclass(frozen=True)
class Job:
    """One request of a workload. Times are driver turns, used as nanoseconds too."""

    prompt: tuple[int, ...]
    max_tokens: int
    at: int = 0
    n: int = 1
    priority: int = 0
    abort_at: int | None = None
    deadline: int | None = None
    stop_every: int = 0
    external: int = 0
    """Leading prompt tokens that an external store can load."""
    load_turns: int = 0
    """How long its loads take; each third one fails if negative."""


class Stuck(AssertionError):
    """Nothing moves any more, or it goes on for ever."""


@dataclass
class World:
    """A scheduler, its memory and everything that was observed."""

    limits: Limits
    throttle: tuple[bool, ...] = ()
    """Asks to hold prefills back, turn by turn, over and over."""
    scheduler: Scheduler = field(init=False)
    executor: ShadowExecutor = field(init=False)

    def __post_init__(self) -> None:
        self.scheduler = Scheduler(self.limits)
        self.executor = ShadowExecutor(
            self.limits.num_blocks,
            self.limits.block_size,
            self.limits.num_host_blocks,
            self.limits.prefix_caching,
        )
        self.now = 0
        self.steps: list[Step] = []
        self.in_flight: deque[Step] = deque()
        self.loads: list[tuple[int, Load]] = []
        self.num_loads_ended = 0
        self.jobs: dict[RequestId, Job] = {}
        self.requests: dict[RequestId, Request] = {}
        self.ended: dict[SeqId, Ended] = {}
        self.output: dict[SeqId, list[int]] = {}
        self.refused: dict[RequestId, Refuse] = {}
        self.capped: dict[RequestId, Capped] = {}

    # -- one call each, audited ----------------------------------------------------------

    def submit(self, job: Job) -> RequestId:
        """A request arrives now."""
        rid = RequestId(len(self.jobs))
        hashes = ()
        if self.limits.prefix_caching:
            hashes = prompt_hashes(b"root", job.prompt, self.limits.block_size)
        self.jobs[rid] = job
        self.executor.add(rid, Work(job.prompt, job.stop_every), hashes)
        arrive = Arrive(
            request_id=rid,
            arrival_ns=Nanos(self.now),
            num_prompt=len(job.prompt),
            max_tokens=job.max_tokens,
            num_branches=job.n,
            priority=job.priority,
            deadline_ns=None if job.deadline is None else Nanos(job.deadline),
            runs_to_limit=not job.stop_every,
            block_hashes=hashes,
            external_tokens=job.external,
        )
        self._note(self.scheduler.handle(arrive, Nanos(self.now)))
        if rid in self.scheduler.requests:
            self.requests[rid] = self.scheduler.requests[rid]
        self._audit()
        return rid

    def abort(self, rid: RequestId) -> None:
        """The caller goes away."""
        self._note(self.scheduler.handle(Abort(request_id=rid), Nanos(self.now)))
        self._audit()

    def plan(self) -> Step | None:
        """Plans one step, if one can be planned."""
        self._note(self.scheduler.tick(Nanos(self.now)))
        throttled = bool(self.throttle) and self.throttle[self.now % len(self.throttle)]
        step = self.scheduler.plan(Nanos(self.now), throttled=throttled)
        if step is not None:
            self._begin_loads(step)
            faults = audit_step(self.scheduler, step)
            assert not faults, "\n".join(faults)
            self.steps.append(step)
            self.in_flight.append(step)
        self._audit()
        return step

    def finish_step(self) -> None:
        """The oldest step in flight is executed and reported."""
        step = self.in_flight.popleft()
        done = self.executor.execute(step)
        self._note(self.scheduler.handle(done, Nanos(self.now)))
        self._audit()

    def _begin_loads(self, step: Step) -> None:
        for load in step.loads:
            job = self.jobs[request_of(load.seq_id)]
            self.executor.plan_load(load)
            if load.load_id % 2:  # written while steps planned before are still to be executed
                self.executor.perform_load(load)
            self.loads.append((self.now + abs(job.load_turns), load))

    def end_loads(self) -> None:
        """Loads whose time has come end."""
        for due, load in list(self.loads):
            if due <= self.now:
                self.loads.remove((due, load))
                self.num_loads_ended += 1
                failed = load.load_id % 3 == 0 and self.jobs[request_of(load.seq_id)].load_turns < 0
                if load.load_id % 2 == 0 and not failed:
                    self.executor.perform_load(load)
                event = LoadFailed(load.load_id) if failed else LoadDone(load.load_id)
                self._note(self.scheduler.handle(event, Nanos(self.now)))
                self._audit()

    def turn(self) -> Step | None:
        """Plans as many steps as fit in flight, then finishes the oldest. Returns the first."""
        self.now += 1
        first = step = self.plan()
        while step is not None:
            step = self.plan()
        if self.in_flight:
            self.finish_step()
        self.end_loads()
        return first

    def run(self, max_turns: int = 10_000) -> None:
        """Turns until everything has ended. Fails when nothing moves any more."""
        for _ in range(max_turns):
            if not self.scheduler.has_work and not self.in_flight:
                self.check_end()
                return
            before = self._progress()
            self.turn()
            wakeup = self.scheduler.next_wakeup()
            moved = self._progress() != before
            if not (moved or self.loads or wakeup is not None):
                raise Stuck(f"stuck: {self.scheduler.gauges()}")
        raise Stuck(f"not done after {max_turns} turns: {self.scheduler.gauges()}")

    def _progress(self) -> tuple[int, ...]:
        return len(self.steps), len(self.in_flight), len(self.ended), self.num_loads_ended

    # -- what was observed ---------------------------------------------------------------

    @property
    def preempted(self) -> list[Preempted]:
        """All preemptions so far, in order."""
        return [event for step in self.steps for event in step.preempted]

    def tokens(self, rid: RequestId, branch: int = 0) -> list[int]:
        """A sequence's valid output."""
        return self.output[seq_id(rid, branch)]

    def reason(self, rid: RequestId, branch: int = 0) -> FinishReason:
        """Why a sequence ended."""
        return self.ended[seq_id(rid, branch)].reason

    def _audit(self) -> None:
        faults = audit(self.scheduler)
        assert not faults, "\n".join(faults)

    def _note(self, effects: list[Ended | Refuse | Capped]) -> None:
        for effect in effects:
            match effect:
                case Ended(seq, _, num_output, _):
                    assert seq not in self.ended, f"sequence {seq} ended twice"
                    self.ended[seq] = effect
                    prompt = self.jobs[request_of(seq)].prompt
                    # a child of a fork that is still in flight has no tokens yet
                    known = self.executor.tokens.get(seq, list(prompt))[len(prompt) :]
                    assert len(known) >= num_output
                    self.output[seq] = known[:num_output]
                case Refuse(rid, _, _):
                    self.refused[rid] = effect
                case Capped(rid, _, _):
                    self.capped[rid] = effect

    def check_end(self) -> None:
        """Q1, Q8, Q9, Q10, Q12 once everything has ended."""
        gauges = self.scheduler.gauges()
        assert gauges.blocks_active == gauges.blocks_fenced == gauges.host_used == 0, gauges
        for rid, job in self.jobs.items():
            if rid not in self.refused:
                self._check_outputs(rid, job)
        self._check_counts()

    def _check_outputs(self, rid: RequestId, job: Job) -> None:
        for seq in self.requests[rid].sequences:
            ended = self.ended[seq.id]
            cap = self.capped[rid].max_tokens if rid in self.capped else job.max_tokens
            cap = max(1, min(cap, self.limits.max_model_len - len(job.prompt)))
            want = Work(job.prompt, job.stop_every).output(branch_of(seq.id), cap)
            got = self.output[seq.id]
            assert got == want[: len(got)], f"{seq.id}: {got} is not a prefix of {want}"
            if ended.reason in (FinishReason.STOP, FinishReason.LENGTH, FinishReason.KV_CAPACITY):
                assert got == want
                last_is_stop = Work(job.prompt, job.stop_every).is_stop(got[-1])
                assert (ended.reason is FinishReason.STOP) == last_is_stop
        assert len(self.requests[rid].sequences) == job.n

    def _check_counts(self) -> None:
        tally = self.scheduler.tally
        recomputes = [event for event in self.preempted if event.how.value == "recompute"]
        assert tally.preemptions_recompute == len(recomputes)
        assert tally.preemptions_swap == len(self.preempted) - len(recomputes)
        assert tally.tokens == sum(step.num_tokens for step in self.steps)
        per_request = dict.fromkeys(self.requests, 0)
        for event in self.preempted:
            per_request[event.request_id] += 1
        for rid, request in self.requests.items():
            assert request.num_preemptions == per_request[rid]
        needed = sum(seq.high_water for req in self.requests.values() for seq in req.sequences)
        dropped = sum(event.num_tokens for event in recomputes)
        assert tally.tokens <= needed + dropped, "Q10: more was computed than was ever lost"
        assert tally.recomputed_tokens <= dropped


def play(
    limits: Limits, jobs: list[Job], max_turns: int = 10_000, throttle: tuple[bool, ...] = ()
) -> World:
    """Runs a workload to its end: arrivals and aborts at their turns."""
    world = World(limits, throttle)
    due = deque(sorted(jobs, key=lambda job: job.at))
    ids: dict[int, RequestId] = {}
    aborts = [(job.abort_at, job) for job in jobs if job.abort_at is not None]
    last = max([job.at for job in jobs] + [at for at, _ in aborts], default=0)
    for now in range(last + 1):
        while due and due[0].at <= now:
            job = due.popleft()
            ids[id(job)] = world.submit(job)
        for at, job in aborts:
            if at == now and id(job) in ids:
                world.abort(ids[id(job)])
        world.turn()
    world.run(max_turns)
    return world


def random_workload(rng: random.Random) -> tuple[Limits, list[Job]]:
    """Limits and jobs. Every other workload is dense: groups, small steps, no block to spare."""
    limits = random_limits(rng)
    jobs = random_jobs(rng, rng.randint(1, 12))
    if rng.random() < 0.5:
        return limits, jobs
    limits = replace(
        limits,
        num_blocks=rng.randint(12, 24),
        block_size=4,
        max_num_seqs=8,
        max_num_batched_tokens=rng.choice([8, 8, 16]),
        max_model_len=200,
        watermark=0.0,
        expected_output_share=0.0,
    )
    return limits, [
        replace(job, n=rng.choice([1, 1, 2, 3]), prompt=job.prompt[:20]) for job in jobs
    ]


def random_limits(rng: random.Random) -> Limits:
    """Tiny pools and every policy, down to pools of one block and budgets below the batch."""
    from forebay.core.limits import ArtificialPressure, Fencing, Policy, PreemptionMode

    max_seqs = rng.choice([1, 2, 4, 8, 8, 16])
    block_size = rng.choice([1, 2, 3, 4, 4, 8])
    pool_tokens = rng.choice([rng.randint(1, 30), *(rng.randint(30, 90) for _ in range(4))])
    budget = max(max_seqs, rng.choice([4, 8, 16, 64]))
    pressure = ArtificialPressure(
        seed=rng.randrange(99),
        probability=rng.choice([0.5, 0.5, 1.0]),
        max_refusals=rng.choice([3, 20, 50]),
    )
    chunked = rng.random() < 0.93
    return Limits(
        num_blocks=max(1, pool_tokens // block_size),
        block_size=block_size,
        num_host_blocks=rng.choice([0, 1, 2, 6, 20, 60]),
        max_num_seqs=max_seqs,
        max_num_batched_tokens=rng.randint(1, 6) if rng.random() < 0.1 else budget,
        max_model_len=rng.choice([32, 64, 200, 200, 200]),
        chunked_prefill=chunked,
        long_prefill_token_threshold=rng.choice([0, 0, 3, 7]) * chunked,
        watermark=rng.choice([0.0, 0.0, 0.05, 0.3, 0.9]),
        prefix_caching=rng.random() < 0.5,
        policy=rng.choice(list(Policy)),
        preemption_mode=rng.choice(list(PreemptionMode)),
        steps_in_flight=rng.choice([1, 2, 3]),
        fencing=rng.choice(list(Fencing)),
        pressure=pressure if rng.random() < 0.25 else None,
        expected_output_share=rng.choice([0.0, 0.0, 0.75, 1.0]),
        max_preemption_lead=rng.choice([1, 3, 3]),
    )


def random_jobs(rng: random.Random, count: int) -> list[Job]:
    """Prompts that share prefixes, groups, aborts, deadlines, priorities, early stops.

    Some go on from the output of another, as the next turn of a conversation does; some are
    larger than the pool.
    """
    stem = tuple(rng.randrange(99) for _ in range(30))
    horizon = rng.choice([1, 5, 30])
    jobs: list[Job] = []
    for _ in range(count):
        shared = rng.choice([0, 0, 4, 9, 9, 20])
        own = tuple(rng.randrange(99) for _ in range(rng.choice([*range(1, 21), 60])))
        prompt = stem[:shared] + own
        at = rng.randrange(horizon)
        if jobs and rng.random() < 0.2:
            before = rng.choice(jobs)
            said = Work(before.prompt, before.stop_every).output(0, before.max_tokens)
            prompt = before.prompt + tuple(said[: rng.choice([30, rng.randint(0, 30)])]) + own[:3]
            at = before.at + rng.randrange(40)
        jobs.append(
            Job(
                prompt=prompt,
                max_tokens=rng.randint(1, 30),
                at=at,
                n=rng.choice([1, 1, 1, 1, 1, 2, 3, 8]),
                priority=rng.choice([0, 0, 1, 5]),
                abort_at=at + rng.randrange(40) if rng.random() < 0.15 else None,
                deadline=at + rng.randrange(60) if rng.random() < 0.1 else None,
                stop_every=rng.choice([0, 0, 7, 25]),
            )
        )
    return jobs
