"""Replays scenarios that were recorded from vLLM 0.5.5's V0 scheduler.

A scenario counts steps: requests are added and aborted before a step, and a step's time is its
number times 0.05 s in floating point. The machine's time is the step's number here, and the
preset's delay rule is told what one unit is worth.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from forebay.core.effects import Clone, Ended, JoinKind, Step, SwapIn, SwapOut, Yield
from forebay.core.events import Abort, Arrive, FinishReason, StepDone
from forebay.core.limits import Limits, PreemptionMode
from forebay.core.policies import Intake, PromptDelay
from forebay.core.presets import vllm_v0
from forebay.core.request import Request
from forebay.core.scheduler import Scheduler
from forebay.core.three_queues import ThreeQueues
from forebay.errors import ConfigError
from forebay.parity.difference import Difference
from forebay.units import Nanos, RequestId, request_of

SECONDS_A_STEP = 0.05
_TOTALS = ("recompute", "swap_out", "swap_in", "ignored")


def limits_of(config: Mapping[str, Any]) -> Limits:
    """The limits and policies of a V0 scenario. Raises: ConfigError for another block manager."""
    manager = config.get("block_manager", "v1")
    if manager != "v1":
        raise ConfigError(
            f"block_manager is {manager!r}: only the recordings of v1 can be replayed"
        )
    mode = config["preemption_mode"]
    limits = vllm_v0(
        Limits(
            num_blocks=config["usable_blocks"],
            num_host_blocks=config["host_blocks"],
            block_size=config["block_size"],
            max_num_seqs=config["max_num_seqs"],
            max_num_batched_tokens=config["max_num_batched_tokens"],
            max_model_len=config["max_model_len"],
            chunked_prefill=config["chunked_prefill"],
            watermark=config.get("watermark", 0.01),
            preemption_mode=PreemptionMode.AUTO if mode is None else PreemptionMode(mode),
        )
    )
    factor = config["delay_factor"]
    delay = PromptDelay(factor=factor, unit_s=SECONDS_A_STEP) if factor > 0 else None
    return replace(limits, rules=replace(limits.rules, intake=Intake.TAKE_ALL, prompt_delay=delay))


class Replay:
    """Drives a scheduler through a scenario, one step a turn, and says what was recorded of it."""

    def __init__(self, scenario: Mapping[str, Any], limits: Limits | None = None) -> None:
        self.scheduler = Scheduler(limits or limits_of(scenario["config"]))
        self.step = 0
        self.totals = dict.fromkeys(_TOTALS, 0)
        self._requests: list[dict[str, Any]] = scenario["requests"]
        self._last_add: int = max((spec["add_step"] for spec in self._requests), default=-1)

    @property
    def is_over(self) -> bool:
        """Whether no request is left, nor to come."""
        return self.step > self._last_add and not self.scheduler.has_work

    @property
    def num_crashes(self) -> int:
        """Victims for which the host had no room so far: there the reference stops its engine."""
        return self.scheduler.tally.swaps_without_room

    def turn(self) -> dict[str, object]:
        """Adds, aborts, plans, executes; returns the fields of the step."""
        now = Nanos(self.step)
        self._add_and_abort(now)
        queues = self._queues
        swapped_before = [req.id for req in queues.swapped]
        step = self.scheduler.plan(now)
        record: dict[str, object] = {"step": self.step}
        record.update(self._scheduled(step))
        record["ignored"] = self._ignored(now, swapped_before)
        record.update(self._moved(step))
        record["running"] = self._names(queues.running)
        record["waiting"] = self._names(queues.queued)
        record["swapped"] = self._names(queues.swapped)
        record["free_device"] = self.scheduler.rooms.kv.pool.num_free
        record["free_host"] = self.scheduler.rooms.kv.host.num_free
        if step is not None:
            self.scheduler.handle(StepDone(seq=step.seq), now)
        record["free_device_after"] = self.scheduler.rooms.kv.pool.num_free
        self.step += 1
        return record

    @property
    def _queues(self) -> ThreeQueues:
        queues = self.scheduler.rooms.queues
        assert isinstance(queues, ThreeQueues)
        return queues

    def _add_and_abort(self, now: Nanos) -> None:
        for at, spec in enumerate(self._requests):
            if spec["add_step"] == self.step:
                arrive = Arrive(
                    request_id=RequestId(at),
                    arrival_ns=now,
                    num_prompt=len(spec["prompt"]),
                    max_tokens=spec["max_tokens"],
                    num_branches=spec.get("n", 1),
                    runs_to_limit=True,
                )
                self.scheduler.handle(arrive, now)
        for at, spec in enumerate(self._requests):
            if spec.get("abort_step") == self.step:
                self.scheduler.handle(Abort(request_id=RequestId(at)), now)

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
        self.totals["ignored"] += len(ordered)
        return [self._name(request_id) for request_id in ordered]

    def _moved(self, step: Step | None) -> dict[str, object]:
        preempted = [] if step is None else step.preempted
        joined = [] if step is None else step.joined
        copies = [] if step is None else step.copies
        recomputed = [event.request_id for event in preempted if event.how is Yield.RECOMPUTE]
        out = [event.request_id for event in preempted if event.how is Yield.SWAP]
        back = [join.seq_id for join in joined if join.kind is JoinKind.SWAPPED_IN]
        back_ids = list(dict.fromkeys(request_of(seq) for seq in back))
        self.totals["recompute"] += len(recomputed)
        self.totals["swap_out"] += len(out)
        self.totals["swap_in"] += len(back_ids)
        return {
            "preempted_recompute": [self._name(request_id) for request_id in recomputed[::-1]],
            "swapped_out": [self._name(request_id) for request_id in out],
            "swapped_in": [self._name(request_id) for request_id in back_ids],
            "swap_out_blocks": sum(isinstance(copy, SwapOut) for copy in copies),
            "swap_in_blocks": sum(isinstance(copy, SwapIn) for copy in copies),
            "copy_blocks": sum(isinstance(copy, Clone) for copy in copies),
        }

    def _name(self, request_id: RequestId) -> str:
        name: str = self._requests[request_id]["id"]
        return name

    def _names(self, requests: list[Request]) -> list[str]:
        return [self._name(req.id) for req in requests]


def _part(kind: JoinKind | None, is_prompt: bool) -> int:
    """Where in the reference's order of a step a group stands."""
    if kind in (JoinKind.NEW, JoinKind.RESUMED):
        return 0
    if is_prompt:
        return 1 if kind is None else 2
    return 3 if kind is None else 4


def replay_v0(scenario: Mapping[str, Any]) -> Difference | None:
    """The first difference between a V0 scenario and our decisions; None if there is none.

    Where the reference stopped its engine, only what came before is compared, and that we too
    found no room on the host in that very step.
    """
    replay = Replay(scenario)
    crash = scenario["crash"]
    for expected in scenario["steps"]:
        if replay.is_over:
            return Difference(expected["step"], "step", expected["step"], None)
        actual = replay.turn()
        for name, value in expected.items():
            if value != actual.get(name):
                return Difference(expected["step"], name, value, actual.get(name))
        if replay.num_crashes:
            return Difference(expected["step"], "crash", None, expected["step"])
    totals = dict(replay.totals)
    if totals != scenario["totals"]:
        return Difference(replay.step, "totals", scenario["totals"], totals)
    if crash is not None:
        return _compare_crash(replay, crash["step"])
    if not replay.is_over and not scenario["stuck"]:
        return Difference(replay.step, "step", None, replay.step)
    return None


def _compare_crash(replay: Replay, step: int) -> Difference | None:
    actual = replay.step
    replay.turn()
    if replay.num_crashes and actual == step:
        return None
    return Difference(step, "crash", step, None)
