"""Replays a scenario recorded from vLLM 0.5.5's V0 scheduler under the `vllm-v0` preset.

A scenario counts steps: requests are added and aborted before a step, and a step's time is its
number times 0.05 s in floating point. The machine's time is the step's number here, and the
preset's delay rule is told what one unit is worth.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from forebay.core.effects import Clone, Ended, JoinKind, Refuse, Step, SwapIn, SwapOut, Yield
from forebay.core.events import Abort, Arrive, FinishReason, StepDone
from forebay.core.limits import Limits, PreemptionMode
from forebay.core.policies import Intake, PromptDelay
from forebay.core.presets import vllm_v0
from forebay.core.request import Request
from forebay.core.scheduler import Scheduler
from forebay.core.three_queues import ThreeQueues
from forebay.parity.replay import Difference, Kind, first_difference
from forebay.parity.scenario import Fields, ScenarioError
from forebay.units import Nanos, RequestId, request_of

SECONDS_A_STEP = 0.05
_FIELDS = (
    *("step", "scheduled", "num_prefill_groups", "ignored", "preempted_recompute"),
    *("swapped_out", "swapped_in", "swap_out_blocks", "swap_in_blocks", "copy_blocks"),
    *("running", "waiting", "swapped", "free_device", "free_host", "free_device_after"),
)
_MODES = {
    None: PreemptionMode.AUTO,
    "recompute": PreemptionMode.RECOMPUTE,
    "swap": PreemptionMode.SWAP,
}


@dataclass(slots=True, frozen=True)
class _Work:
    """One request of the scenario."""

    name: str
    spec: Arrive
    abort_step: int | None


class VllmV0Replay:
    """One run, a step a turn; sequences stop at `max_tokens` alone, so tokens play no role."""

    required: tuple[str, ...] = _FIELDS

    def __init__(self, scenario: Fields) -> None:
        self.scheduler = Scheduler(limits_of(scenario.part("config")))
        self.step = 0
        self._works = _works(scenario)
        self._last_add = max((work.spec.arrival_ns for work in self._works), default=-1)
        self._totals = dict.fromkeys(("recompute", "swap_out", "swap_in", "ignored"), 0)
        recorded = scenario.values.get("crash")
        self._error = recorded.get("error") if isinstance(recorded, dict) else None
        self._crash: dict[str, object] | None = None

    def steps(self) -> Iterator[Mapping[str, object]]:
        """Each step's fields until no request is left, or the host lacks room for a victim.

        There the reference stops its engine, so that step is not told.
        """
        while not self.is_over:
            before = dict(self._totals)
            fields = self.turn()
            if self.scheduler.tally.swaps_without_room:
                self._crash = {"step": fields["step"], "error": self._error}
                self._totals = before
                return
            yield fields

    def totals(self) -> Mapping[str, object]:
        """Fields of the whole run. A crash is compared by its step, not by its words."""
        return {"totals": dict(self._totals), "crash": self._crash}

    @property
    def is_over(self) -> bool:
        """Whether no request is left, nor to come."""
        return self.step > self._last_add and not self.scheduler.has_work

    def turn(self) -> dict[str, object]:
        """Adds, aborts, plans, executes; returns the fields of the step. Goes on after a crash."""
        now = Nanos(self.step)
        self._add_and_abort(now)
        queues = self._queues
        swapped_before = [req.id for req in queues.swapped]
        step = self.scheduler.plan(now)
        fields: dict[str, object] = {"step": self.step}
        fields |= self._scheduled(step)
        fields["ignored"] = self._ignored(now, swapped_before)
        fields |= self._moved(step)
        fields |= {
            "running": self._names(queues.running),
            "waiting": self._names(queues.queued),
            "swapped": self._names(queues.swapped),
            "free_device": self.scheduler.rooms.kv.pool.num_free,
            "free_host": self.scheduler.rooms.kv.host.num_free,
        }
        if step is not None:
            self.scheduler.handle(StepDone(seq=step.seq), now)
        fields["free_device_after"] = self.scheduler.rooms.kv.pool.num_free
        self.step += 1
        return fields

    @property
    def _queues(self) -> ThreeQueues:
        queues = self.scheduler.rooms.queues
        assert isinstance(queues, ThreeQueues)
        return queues

    def _add_and_abort(self, now: Nanos) -> None:
        for work in self._works:
            if work.spec.arrival_ns == now:
                for effect in self.scheduler.handle(work.spec, now):
                    if isinstance(effect, Refuse):
                        raise ScenarioError(f"request {work.name}: {effect.message}")
        for work in self._works:
            if work.abort_step == now:
                self.scheduler.handle(Abort(request_id=work.spec.request_id), now)

    def _scheduled(self, step: Step | None) -> dict[str, object]:
        """Prompts first: new ones, running chunks, swapped-in chunks; then decodes alike."""
        scheduled: list[list[object]] = []
        num_prefills = 0
        if step is not None:
            parts: list[list[list[object]]] = [[], [], [], [], []]
            idle = set(step.idle)
            tokens = {chunk.seq_id: chunk.num_tokens for chunk in step.chunks}
            kinds = {request_of(join.seq_id): join.kind for join in step.joined}
            for req in self._queues.running:
                lead = req.live[0]
                if lead.id in idle:
                    continue
                num_tokens = tokens.get(lead.id, 1)
                is_prompt = lead.computed - num_tokens < req.prefill_until
                part = _part(kinds.get(req.id), is_prompt)
                parts[part].append([self._name(req.id), num_tokens])
            scheduled = [entry for part in parts for entry in part]
            num_prefills = sum(len(part) for part in parts[:3])
        return {"scheduled": scheduled, "num_prefill_groups": num_prefills}

    def _ignored(self, now: Nanos, swapped_before: list[RequestId]) -> list[str]:
        """Whom the plan has given up: prompts, then swapped groups."""
        gone: dict[RequestId, None] = {}
        for effect in self.scheduler.tick(now):
            if isinstance(effect, Ended) and effect.reason is FinishReason.IGNORED:
                gone[request_of(effect.seq_id)] = None
        ordered = sorted(gone, key=lambda request_id: request_id in swapped_before)
        self._totals["ignored"] += len(ordered)
        return [self._name(request_id) for request_id in ordered]

    def _moved(self, step: Step | None) -> dict[str, object]:
        preempted = [] if step is None else step.preempted
        joined = [] if step is None else step.joined
        copies = [] if step is None else step.copies
        recomputed = [event.request_id for event in preempted if event.how is Yield.RECOMPUTE]
        out = [event.request_id for event in preempted if event.how is Yield.SWAP]
        back = [join.seq_id for join in joined if join.kind is JoinKind.SWAPPED_IN]
        back_ids = list(dict.fromkeys(request_of(seq) for seq in back))
        self._totals["recompute"] += len(recomputed)
        self._totals["swap_out"] += len(out)
        self._totals["swap_in"] += len(back_ids)
        return {
            "preempted_recompute": [self._name(request_id) for request_id in recomputed[::-1]],
            "swapped_out": [self._name(request_id) for request_id in out],
            "swapped_in": [self._name(request_id) for request_id in back_ids],
            "swap_out_blocks": sum(isinstance(copy, SwapOut) for copy in copies),
            "swap_in_blocks": sum(isinstance(copy, SwapIn) for copy in copies),
            "copy_blocks": sum(isinstance(copy, Clone) for copy in copies),
        }

    def _name(self, request_id: RequestId) -> str:
        return self._works[request_id].name

    def _names(self, requests: list[Request]) -> list[str]:
        return [self._name(req.id) for req in requests]


def _part(kind: JoinKind | None, is_prompt: bool) -> int:
    """Where in the reference's order of a step a group stands."""
    if kind in (JoinKind.NEW, JoinKind.RESUMED):
        return 0
    if is_prompt:
        return 1 if kind is None else 2
    return 3 if kind is None else 4


def limits_of(config: Fields) -> Limits:
    """The limits and policies of a scenario. Raises: ScenarioError for what it cannot be."""
    manager = config.values.get("block_manager", "v1")
    if manager != "v1":
        raise ScenarioError(f"config block_manager is {manager!r}; only v1 can be replayed")
    mode = config.values.get("preemption_mode")
    if not (mode is None or isinstance(mode, str)) or mode not in _MODES:
        raise ScenarioError(
            f"config preemption_mode is {mode!r}; it must be recompute, swap or null"
        )
    limits = vllm_v0(
        Limits(
            num_blocks=config.whole("usable_blocks", least=1),
            num_host_blocks=config.whole("host_blocks"),
            block_size=config.whole("block_size", least=1),
            max_num_seqs=config.whole("max_num_seqs", least=1),
            max_num_batched_tokens=config.whole("max_num_batched_tokens", least=1),
            max_model_len=config.whole("max_model_len", least=1),
            chunked_prefill=config.flag("chunked_prefill"),
            watermark=config.number("watermark") if "watermark" in config.values else 0.01,
            preemption_mode=_MODES[mode],
        )
    )
    factor = config.number("delay_factor")
    delay = PromptDelay(factor=factor, unit_s=SECONDS_A_STEP) if factor > 0 else None
    rules = replace(limits.rules, intake=Intake.TAKE_ALL, prompt_delay=delay)
    return replace(limits, rules=rules)


def _works(scenario: Fields) -> list[_Work]:
    """All requests, numbered as they are listed: so same-step ones join in list order."""
    requests = scenario.parts("requests")
    names = [request.text("id") for request in requests]
    if len(set(names)) < len(names):
        raise ScenarioError("two requests have the same id")
    return [_work(request, RequestId(at)) for at, request in enumerate(requests)]


def _work(request: Fields, request_id: RequestId) -> _Work:
    has_abort = request.values.get("abort_step") is not None
    return _Work(
        name=request.text("id"),
        spec=Arrive(
            request_id=request_id,
            arrival_ns=Nanos(request.whole("add_step")),
            num_prompt=len(request.items("prompt")),
            max_tokens=request.whole("max_tokens"),
            num_branches=request.whole("n", least=1, default=1),
            runs_to_limit=True,
        ),
        abort_step=request.whole("abort_step") if has_abort else None,
    )


VLLM_V0 = Kind("vllm-v0", "vllm 0.5.5 V0 Scheduler", VllmV0Replay)


def replay_v0(scenario: Mapping[str, object]) -> Difference | None:
    """The first difference between a V0 scenario and our decisions; None if there is none."""
    return first_difference(Fields("", scenario), (VLLM_V0,))
