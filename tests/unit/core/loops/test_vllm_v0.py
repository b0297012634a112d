"""Small scenarios for what the recordings cannot show, or show only among much else."""

from typing import Any

import pytest

from forebay.core.effects import Ended
from forebay.core.events import Arrive, FinishReason
from forebay.core.limits import Limits
from forebay.core.presets import vllm_v0
from forebay.core.scheduler import Scheduler
from forebay.units import Nanos, RequestId
from tests.parity.v0_scenes import replay
from tests.support.driver import Job, play


def turns(num_steps: int, *requests: dict[str, Any], **config: Any) -> list[dict[str, Any]]:
    run = replay(*requests, **config)
    return [run.turn() for _ in range(num_steps)]


def test_prompts_come_first_and_hold_decodes_back() -> None:
    first, second, third = turns(3, {"p": 4, "m": 5}, {"p": 5, "m": 5, "at": 1})
    assert first["scheduled"] == [["r0", 4]]
    assert second["scheduled"] == [["r1", 5]]
    assert second["running"] == ["r0", "r1"]
    assert third["scheduled"] == [["r0", 1], ["r1", 1]]


def test_chunks_stand_before_decodes_and_after_new_prompts() -> None:
    config = {"chunked_prefill": True, "max_num_batched_tokens": 8}
    steps = turns(4, {"p": 3, "m": 9}, {"p": 10, "m": 5}, {"p": 2, "m": 5, "at": 1}, **config)
    assert steps[0]["scheduled"] == [["r0", 3], ["r1", 5]]
    assert steps[1]["scheduled"] == [["r2", 2], ["r1", 5], ["r0", 1]]
    assert steps[1]["running"] == ["r2", "r0", "r1"]
    assert steps[1]["num_prefill_groups"] == 2


def test_a_watermark_keeps_prompts_waiting_and_ignores_what_it_leaves_no_room_for() -> None:
    config = {"watermark": 0.25, "usable_blocks": 8}  # two blocks
    both = ({"p": 16, "m": 4}, {"p": 12, "m": 4}, {"p": 28, "m": 1})
    steps = turns(6, *both, **config)
    assert steps[0]["running"] == ["r0"]  # 4 of 8 blocks: 3 more would leave 1
    assert steps[0]["ignored"] == []
    started = next(step for step in steps if ["r1", 12] in step["scheduled"])
    assert started["free_device"] == 5
    assert started["ignored"] == ["r2"]  # 7 of 8 blocks, never 2 left; it stood behind r1


def test_a_prompt_beyond_the_budget_or_the_length_is_ignored() -> None:
    config = {"max_num_batched_tokens": 12, "max_model_len": 20}
    (step,) = turns(1, {"p": 13, "m": 1}, {"p": 12, "m": 1}, {"p": 21, "m": 1}, **config)
    assert step["ignored"] == ["r0", "r2"]
    assert step["scheduled"] == [["r1", 12]]
    chunked = turns(3, {"p": 13, "m": 1}, {"p": 21, "m": 1}, chunked_prefill=True, **config)
    assert [step["ignored"] for step in chunked] == [[], [], []]
    assert chunked[0]["scheduled"] == [["r0", 12]]


def test_the_last_of_the_queue_yields_and_comes_back_first() -> None:
    config = {"usable_blocks": 3, "block_size": 2}
    steps = turns(2, {"p": 2, "m": 4}, {"p": 2, "m": 4}, {"p": 2, "m": 2}, **config)
    assert steps[0]["running"] == ["r0", "r1", "r2"]
    assert steps[1]["preempted_recompute"] == ["r1", "r2"]  # in waiting order
    assert steps[1]["waiting"] == ["r1", "r2"]
    assert steps[1]["scheduled"] == [["r0", 1]]


def test_branches_copy_the_shared_block_once_fewer_than_they_are() -> None:
    steps = turns(3, {"p": 5, "m": 4, "n": 3})
    assert [step["copy_blocks"] for step in steps] == [0, 2, 0]
    assert [step["free_device"] for step in steps] == [6, 4, 4]


def test_shared_blocks_are_swapped_once_and_an_ignored_group_leaks_them() -> None:
    config = {"usable_blocks": 4, "block_size": 4}
    steps = turns(12, {"p": 8, "m": 9, "n": 2}, **config)
    out = next(step for step in steps if step["swapped_out"])
    assert out["swap_out_blocks"] == 4  # two shared, one each of their own
    gone = next(step for step in steps if step["ignored"])
    assert gone["free_host"] == 4
    assert steps[-1]["free_host"] == 4
    assert steps[-1]["free_device_after"] == 4


def test_a_half_computed_prompt_is_swapped_with_its_whole_table() -> None:
    config = {"chunked_prefill": True, "max_num_batched_tokens": 4, "preemption_mode": "swap"}
    steps = turns(4, {"p": 3, "m": 9}, {"p": 12, "m": 1}, usable_blocks=4, **config)
    assert steps[0]["scheduled"] == [["r0", 3], ["r1", 1]]
    assert steps[1]["swapped_out"] == ["r1"]
    assert steps[1]["swap_out_blocks"] == 3


@pytest.mark.parametrize("max_num_seqs", [1, 2])
def test_a_request_of_more_sequences_than_seats_blocks_the_queue(max_num_seqs: int) -> None:
    steps = turns(4, {"p": 4, "m": 2, "n": 2}, {"p": 4, "m": 2}, max_num_seqs=max_num_seqs)
    ran = [name for step in steps for name, _ in step["scheduled"]]
    assert ("r0" in ran) == (max_num_seqs == 2)
    assert ("r1" in ran) == (max_num_seqs == 2)


def test_who_is_given_up_while_planning_is_told_by_the_next_tick() -> None:
    scheduler = Scheduler(vllm_v0(Limits(num_blocks=2, block_size=4)))
    spec = Arrive(
        request_id=RequestId(3), arrival_ns=Nanos(0), num_prompt=9, max_tokens=1, num_branches=2
    )
    assert scheduler.handle(spec, Nanos(0)) == []
    assert scheduler.plan(Nanos(1)) is None
    assert scheduler.requests == {}
    assert scheduler.has_work
    assert scheduler.next_wakeup() == 0
    told = scheduler.tick(Nanos(2))
    assert [(end.seq_id, end.reason) for end in told if isinstance(end, Ended)] == [
        (24, FinishReason.IGNORED),
        (25, FinishReason.IGNORED),
    ]
    assert not scheduler.has_work
    assert scheduler.next_wakeup() is None


def test_a_live_engine_under_the_preset_stops_at_max_model_len() -> None:
    limits = vllm_v0(Limits(num_blocks=8, block_size=4, max_model_len=12))
    world = play(limits, [Job(prompt=(1,) * 8, max_tokens=30)])
    assert len(world.tokens(RequestId(0))) == 4
    assert world.reason(RequestId(0)) is FinishReason.LENGTH
