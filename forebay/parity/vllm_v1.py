"""Replays a scenario recorded from vLLM 0.25.1's V1 scheduler under the `vllm-v1` preset."""

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from zlib import crc32

from forebay.block_hash import chain_hash, prompt_hashes, root_hash
from forebay.core.effects import Effect, Ended, JoinKind, Load, Refuse, Step
from forebay.core.events import Abort, Arrive, BlockFilled, LoadDone, StepDone
from forebay.core.limits import Limits, Policy
from forebay.core.loops.vllm_v1_admission import reserved_blocks
from forebay.core.presets import vllm_v1
from forebay.core.scheduler import Scheduler
from forebay.parity.scenario import Fields, ScenarioError
from forebay.units import LoadId, Nanos, RequestId, SeqId, nanos, request_of, seq_id

EOS = 2
_ROOT = root_hash("parity")
_LOAD_FIELDS = ("parked", "reserved", "fenced_blocks")
_FIELDS = (
    *("step", "scheduled", "new", "resumed", "preempted", "start", "running", "waiting"),
    *("free_blocks", "capacity_bound", "load_started", "load_done", "in_flight", "finished"),
    "free_blocks_after",
)


def sampled_token(name: str, position: int, *, stop_on_eos: bool) -> int:
    """The token that a request yields when `position` tokens of it are computed."""
    draw = crc32(f"{name}:{position}".encode())
    return EOS if stop_on_eos and draw % 29 == 0 else draw % 40_000 + 5


@dataclass(slots=True)
class _Work:
    """One request of the scenario, and its tokens as the executor has them."""

    name: str
    spec: Arrive
    add_step: int
    abort_step: int | None
    load_steps: int
    tokens: list[int]
    hashes: list[bytes] = field(default_factory=list)


PresetOf = Callable[[Limits, bool], Limits]
"""Makes limits of a preset from a scenario's sizes, and whether it has an external store."""


def as_vllm_v1(sizes: Limits, has_store: bool) -> Limits:
    """The preset that the recordings are of."""
    return vllm_v1(sizes, external_store=has_store)


class VllmV1Replay:
    """One run. Steps are executed by a scripted executor; loads end when the scenario says."""

    def __init__(self, scenario: Fields, preset: PresetOf = as_vllm_v1) -> None:
        config = scenario.part("config")
        self._has_store = config.flag("external_store")
        self.required = _FIELDS + (_LOAD_FIELDS if self._has_store else ())
        self._stop_on_eos = config.flag("stop_on_eos")
        self._flags = [bool(flag) for flag in scenario.items("throttle")]
        self._limits = preset(_sizes(config), self._has_store)
        self.scheduler = Scheduler(self._limits)
        self._works = _works(scenario, self._limits, has_store=self._has_store)
        self._due = deque(sorted(self._works.values(), key=lambda work: work.add_step))
        self._aborts: dict[int, list[RequestId]] = {}
        for rid, work in self._works.items():
            if work.abort_step is not None:
                self._aborts.setdefault(work.abort_step, []).append(rid)
        self._in_flight: deque[tuple[Step, list[tuple[SeqId, int]]]] = deque()
        self._loads: dict[LoadId, tuple[RequestId, int]] = {}
        self._finished: list[str] = []
        self._num_preemptions = 0

    # -- the turn of the reference's loop ----------------------------------------------

    def steps(self) -> Iterator[Mapping[str, object]]:
        """Each step's fields, until no request is left."""
        step = 0
        while self._due or self.scheduler.has_work:
            yield self._turn(step)
            step += 1

    def totals(self) -> Mapping[str, object]:
        """Fields of the whole run."""
        ended = not (self._due or self.scheduler.has_work)
        return {"preemptions": self._num_preemptions, "finished_all": ended}

    def _turn(self, at: int) -> dict[str, object]:
        while self._due and self._due[0].add_step <= at:
            self._handle(self._due.popleft().spec)
        for rid in self._aborts.get(at, []):
            self._handle(Abort(request_id=rid))
        self._finished.clear()  # aborted ones are not listed
        throttled = bool(self._flags) and self._flags[at % len(self._flags)]
        step = self.scheduler.plan(Nanos(at), throttled=throttled)
        fields = self._planned(at, step)
        computes = step is not None and step.num_rows > 0
        hands_back = not computes or self._num_computing == self._limits.steps_in_flight
        if hands_back:
            self._hand_back()
        fields |= {
            "load_done": self._end_loads(at) if hands_back else [],
            "in_flight": self._num_computing,
            "finished": sorted(self._finished),
            "free_blocks_after": self.scheduler.rooms.kv.pool.num_free,
        }
        return fields

    def _planned(self, at: int, step: Step | None) -> dict[str, object]:
        rooms = self.scheduler.rooms
        scheduled = self._scheduled(step)
        joined = step.joined if step else []
        loads = step.loads if step else []
        victims = [event.request_id for event in step.preempted] if step else []
        self._num_preemptions += len(victims)
        for load in loads:
            self._note_load(load, at)
        if step is not None:
            self._in_flight.append((step, scheduled))
        return {
            "step": at,
            "scheduled": [[self._name(seq), num_tokens] for seq, num_tokens in scheduled],
            "new": [self._name(row.seq_id) for row in joined if row.kind is JoinKind.NEW],
            "resumed": [self._name(row.seq_id) for row in joined if row.kind is JoinKind.RESUMED],
            "preempted": sorted(self._works[rid].name for rid in victims),
            "start": {self._name(row.seq_id): row.num_computed for row in joined},
            "running": [self._works[req.id].name for req in rooms.queues.running],
            "waiting": [self._works[req.id].name for req in rooms.queues.waiting],
            "free_blocks": rooms.kv.pool.num_free,
            "capacity_bound": rooms.throttle.capacity_bound,
            "load_started": sorted(self._name(load.seq_id) for load in loads),
            "parked": [self._works[req.id].name for req in rooms.queues.parked],
            "reserved": reserved_blocks(rooms),
            "fenced_blocks": rooms.kv.fences.num_returning,
        }

    def _scheduled(self, step: Step | None) -> list[tuple[SeqId, int]]:
        """All that compute, in the order of the running list, from the step's delta."""
        if step is None:
            return []
        chunks = {chunk.seq_id: chunk.num_tokens for chunk in step.chunks}
        idle = set(step.idle)
        running = [seq_id(req.id, 0) for req in self.scheduler.rooms.queues.running]
        return [(seq, chunks.get(seq, 1)) for seq in running if seq not in idle]

    # -- the scripted executor ---------------------------------------------------------

    @property
    def _num_computing(self) -> int:
        return sum(step.num_rows > 0 for step, _ in self._in_flight)

    def _hand_back(self) -> None:
        """The oldest step's tokens; steps that compute nothing are done with the one before."""
        if self._in_flight:
            self._execute(*self._in_flight.popleft())
        while self._in_flight and self._in_flight[0][0].num_rows == 0:
            self._execute(*self._in_flight.popleft())

    def _execute(self, step: Step, scheduled: list[tuple[SeqId, int]]) -> None:
        partial = {chunk.seq_id for chunk in step.chunks if not chunk.samples}
        stops: list[SeqId] = []
        filled: list[BlockFilled] = []
        for seq, _ in scheduled:
            if seq not in partial and request_of(seq) in self.scheduler.requests:
                self._sample(seq, stops, filled)
        self._handle(StepDone(seq=step.seq, stops=tuple(stops), filled=tuple(filled)))

    def _sample(self, seq: SeqId, stops: list[SeqId], filled: list[BlockFilled]) -> None:
        work = self._works[request_of(seq)]
        position = len(work.tokens)
        work.tokens.append(sampled_token(work.name, position, stop_on_eos=self._stop_on_eos))
        if work.tokens[-1] == EOS and self._stop_on_eos:
            stops.append(seq)
        size = self._limits.block_size
        if self._limits.prefix_caching and len(work.tokens) % size == 0:
            parent = work.hashes[-1] if work.hashes else _ROOT
            work.hashes.append(chain_hash(parent, work.tokens[-size:]))
            filled.append(BlockFilled(seq, len(work.hashes) - 1, work.hashes[-1]))

    def _note_load(self, load: Load, at: int) -> None:
        rid = request_of(load.seq_id)
        self._loads[load.load_id] = (rid, at + self._works[rid].load_steps)

    def _end_loads(self, at: int) -> list[str]:
        done = [load_id for load_id, (_, end) in self._loads.items() if end <= at]
        names = sorted(self._works[self._loads.pop(load_id)[0]].name for load_id in done)
        for load_id in done:
            self._handle(LoadDone(load_id))
        return names

    # -- both --------------------------------------------------------------------------

    def _handle(self, event: Arrive | Abort | StepDone | LoadDone) -> None:
        for effect in self.scheduler.handle(event, Nanos(0)):
            self._note(effect)

    def _note(self, effect: Effect) -> None:
        if isinstance(effect, Ended):
            self._finished.append(self._name(effect.seq_id))
        elif isinstance(effect, Refuse):
            raise ScenarioError(f"request {self._works[effect.request_id].name}: {effect.message}")

    def _name(self, seq: SeqId) -> str:
        return self._works[request_of(seq)].name


def _sizes(config: Fields) -> Limits:
    policy = config.text("policy")
    if policy not in ("fcfs", "priority"):
        raise ScenarioError(f"config policy is {policy!r}; it must be fcfs or priority")
    return Limits(
        num_blocks=config.whole("usable_blocks", least=1),
        block_size=config.whole("block_size", least=1),
        max_num_seqs=config.whole("max_num_seqs", least=1),
        max_num_batched_tokens=config.whole("max_num_batched_tokens", least=1),
        max_model_len=config.whole("max_model_len", least=1),
        long_prefill_token_threshold=config.whole("long_prefill_token_threshold"),
        watermark=config.number("watermark"),
        prefix_caching=config.flag("prefix_caching"),
        policy=Policy(policy),
        steps_in_flight=config.whole("steps_in_flight", least=1),
        reserve_full_prompt=config.flag("reserve_full_prompt"),
    )


def _works(scenario: Fields, limits: Limits, *, has_store: bool) -> dict[RequestId, _Work]:
    """All requests; ids are numbered as their names sort, since names break ties of arrival."""
    requests = scenario.parts("requests")
    names = [request.text("id") for request in requests]
    if len(set(names)) < len(names):
        raise ScenarioError("two requests have the same id")
    number = {name: RequestId(at) for at, name in enumerate(sorted(names))}
    works = [
        _work(request, number[request.text("id")], limits, has_store=has_store)
        for request in requests
    ]
    return {work.spec.request_id: work for work in works}


def _work(request: Fields, rid: RequestId, limits: Limits, *, has_store: bool) -> _Work:
    external_tokens = request.whole("external_tokens", default=0)
    prompt = request.wholes("prompt")
    if any(token >= 1 << 32 for token in prompt):
        raise ScenarioError(f"{request.where} prompt has a token id of more than 32 bits")
    hashes: tuple[bytes, ...] = ()
    if limits.prefix_caching:
        hashes = prompt_hashes(_ROOT, prompt, limits.block_size)
    has_abort = request.values.get("abort_step") is not None
    return _Work(
        name=request.text("id"),
        spec=Arrive(
            request_id=rid,
            arrival_ns=nanos(request.number("arrival_time")),
            num_prompt=len(prompt),
            max_tokens=request.whole("max_tokens"),
            priority=request.integer("priority"),
            block_hashes=hashes,
            external_tokens=external_tokens if has_store else 0,
        ),
        add_step=request.whole("add_step"),
        abort_step=request.whole("abort_step") if has_abort else None,
        load_steps=request.whole("load_steps", default=0),
        tokens=list(prompt),
        hashes=list(hashes),
    )
