"""All recordings of vLLM 0.5.5's V0 scheduler, field by field, and what they cannot show."""

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from forebay.core.audit import audit
from forebay.core.limits import Limits
from forebay.core.policies import GrowthCheck, SwapInSize
from forebay.core.presets import vllm_v0
from forebay.parity.scenario import Fields, ScenarioError
from forebay.parity.vllm_v0 import VllmV0Replay, limits_of, replay_v0
from tests.parity.v0_scenes import FAMILIES, FILES, family, read, scenario
from tests.support.driver import Job, World, play

STUCK = "v0-chunked_swap-28.json.gz"
CRASHED = [file for file in FILES if read(file)["crash"] is not None]


def test_every_recording_is_here() -> None:
    assert len(FILES) == 72
    assert [len(family(name)) for name in FAMILIES] == [6] * 12
    assert [file.name for file in FILES if read(file)["stuck"]] == [STUCK]
    assert len(CRASHED) == 10


@pytest.mark.parametrize("name", FAMILIES)
def test_decides_what_was_recorded(name: str) -> None:
    for file in family(name):
        difference = replay_v0(read(file))
        assert difference is None, f"{file.name}: {difference}"


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        ("scheduled", [["r0", 2]]),
        ("running", ["r9"]),
        ("ignored", ["r0"]),
        ("num_prefill_groups", 7),
        ("swap_out_blocks", 1),
        ("free_host", 0),
        ("free_device_after", 1),
    ],
)
def test_a_flipped_field_is_found(field: str, wrong: object) -> None:
    recorded = copy.deepcopy(read(family("mixed_n2")[0]))
    recorded["steps"][30][field] = wrong
    difference = replay_v0(recorded)
    assert difference is not None
    assert (difference.step, difference.field, difference.recorded) == (30, field, wrong)


def test_a_wrong_end_is_found() -> None:
    recorded = read(family("tight_groups")[0])
    for change in (
        {"crash": {**recorded["crash"], "step": recorded["crash"]["step"] + 1}},
        {"crash": None},
        {"totals": {**recorded["totals"], "ignored": 9}},
        {"steps": recorded["steps"][:-1]},
        {"steps": [*recorded["steps"], recorded["steps"][-1]]},
    ):
        assert replay_v0({**recorded, **change}) is not None, change
    ended = read(family("recompute")[0])
    assert replay_v0({**ended, "crash": recorded["crash"]}) is not None


@pytest.mark.parametrize("file", CRASHED, ids=lambda file: file.name)
def test_where_the_reference_stops_only_the_victim_is_recomputed(file: Path) -> None:
    recorded = read(file)
    replay = VllmV0Replay(Fields("", recorded))
    while not replay.is_over:
        at_crash = replay.step == recorded["crash"]["step"]
        fields = replay.turn()
        if at_crash:
            (victim,) = fields["preempted_recompute"] or [None]  # type: ignore[misc]  # a list
            assert victim is not None
            assert replay.scheduler.tally.swaps_without_room == 1
        assert audit(replay.scheduler) == []
        assert replay.step < 5_000
    gauges = replay.scheduler.gauges()
    assert gauges.blocks_active == gauges.host_used == 0


def jobs_of(recorded: dict[str, Any]) -> list[Job]:
    """The scenario's requests with token values of their own; token values play no role."""
    return [
        Job(
            prompt=tuple(at * 1000 + position for position in range(len(spec["prompt"]))),
            max_tokens=spec["max_tokens"],
            at=spec["add_step"],
            n=spec["n"],
            abort_at=spec.get("abort_step"),
        )
        for at, spec in enumerate(recorded["requests"])
    ]


@pytest.mark.parametrize("name", FAMILIES)
def test_outputs_are_whole_on_a_memory_that_remembers(name: str) -> None:
    """The preset on the shadow executor, crashes included; what would be stuck is mended."""
    for file in family(name):
        recorded = read(file)
        limits = limits_of(Fields("", recorded["config"]))
        if recorded["stuck"]:
            limits = replace(limits, rules=replace(limits.rules, swap_in_size=SwapInSize.CHUNK))
        play(limits, jobs_of(recorded))


@pytest.mark.parametrize("name", FAMILIES)
def test_our_own_preset_loses_nothing_where_the_reference_does(name: str) -> None:
    for file in family(name):
        recorded = read(file)
        config = limits_of(Fields("", recorded["config"]))
        world = play(ours(config), jobs_of(recorded))
        aborted = sum(spec.get("abort_step") is not None for spec in recorded["requests"])
        short = [end for end in world.ended.values() if end.reason.value in ("ignored", "error")]
        assert short == []
        assert aborted or all(end.reason.value != "abort" for end in world.ended.values())


def ours(config: Limits) -> Limits:
    """The sizes of a scenario under the default policies."""
    return Limits(
        num_blocks=config.num_blocks,
        num_host_blocks=config.num_host_blocks,
        block_size=config.block_size,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        max_model_len=config.max_model_len,
        chunked_prefill=config.chunked_prefill,
    )


def test_stuck_for_ever_where_the_reference_is() -> None:
    """A half-computed prompt was swapped out; what is missing exceeds the budget of any step."""
    replay = VllmV0Replay(Fields("", read(family("chunked_swap")[2])))
    for _ in range(400):
        fields = replay.turn()
    assert fields["scheduled"] == []
    assert fields["swapped"] != []
    assert not replay.is_over


def test_a_chunked_prompt_that_fills_the_pool_evicts_itself_for_ever_unless_mended() -> None:
    job = Job(prompt=tuple(range(16)), max_tokens=1)
    limits = vllm_v0(Limits(num_blocks=4, block_size=4, max_num_batched_tokens=8))
    exact = World(limits)
    exact.submit(job)
    for _ in range(50):
        exact.turn()
    assert exact.scheduler.has_work
    assert exact.scheduler.tally.preemptions_recompute == 25
    play(replace(limits, rules=replace(limits.rules, growth=GrowthCheck.MISSING)), [job])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"block_manager": "v2"}, "block_manager is 'v2'"),
        ({"preemption_mode": "auto"}, "preemption_mode is 'auto'"),
        ({"preemption_mode": 1}, "preemption_mode is 1"),
        ({"usable_blocks": 0}, "usable_blocks is 0"),
    ],
)
def test_what_cannot_be_replayed_is_said(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ScenarioError, match=message):
        VllmV0Replay(scenario({"p": 4, "m": 1}, **change))


def test_two_requests_of_one_name_are_refused() -> None:
    fields = scenario({"p": 4, "m": 1}, {"p": 4, "m": 1})
    for request in fields.values["requests"]:  # type: ignore[attr-defined]  # a list, see above
        request["id"] = "r0"
    with pytest.raises(ScenarioError, match="same id"):
        VllmV0Replay(fields)


def test_a_request_of_no_tokens_is_refused() -> None:
    with pytest.raises(ScenarioError, match="r0: the prompt is empty"):
        VllmV0Replay(scenario({"p": 0, "m": 1})).turn()
