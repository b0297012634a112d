"""What the recordings of vLLM's V1 scheduler cannot show, or show only by chance."""

from dataclasses import replace
from typing import Any

import pytest

from forebay.core.effects import Step
from forebay.core.events import FinishReason
from forebay.core.lifecycle import Loaded, Loading, Queued, QueuedWhy
from forebay.core.limits import Limits, Policy
from forebay.core.policies import CursorRule, UndoneBlocks
from forebay.core.presets import VLLM_V1_RULES, vllm_v1
from forebay.errors import ConfigError
from forebay.units import RequestId, seq_id
from tests.support.driver import Job, World


def world(*, throttle: tuple[bool, ...] = (), **more: Any) -> World:
    """Blocks of four tokens under the preset, as it is executed; an external store may write."""
    given = {"num_blocks": 40, "block_size": 4, "max_num_batched_tokens": 64, **more}
    rules = given.pop("rules", None)
    limits = vllm_v1(Limits(**given), external_store=True, executed=True)
    return World(limits if rules is None else replace(limits, rules=rules), throttle)


def prompt(length: int, start: int = 0) -> tuple[int, ...]:
    """Distinct tokens; prompts with the same start share their prefix."""
    return tuple(range(start, start + length))


def rows(step: Step | None) -> dict[int, tuple[int, int]]:
    """Request id to (first, number) of the chunks that are not one decoded token."""
    assert step is not None
    return {chunk.seq_id // 8: (chunk.start, chunk.num_tokens) for chunk in step.chunks}


# -- prefix cache ------------------------------------------------------------------------


def test_a_full_hit_computes_its_last_block_again() -> None:
    run = world()
    run.submit(Job(prompt(8), 1))
    run.turn()
    run.submit(Job(prompt(8), 1))
    step = run.turn()
    assert rows(step) == {1: (4, 4)}  # hits cover at most all known tokens but one
    run.run()


def test_a_full_load_computes_only_its_last_token_again() -> None:
    run = world()
    run.submit(Job(prompt(8), 3, external=8))
    assert rows(run.turn()) == {}
    step = run.turn()
    assert step is not None
    (join,) = step.joined
    assert join.num_computed == 7
    assert step.num_tokens == 1
    run.run()


def test_of_duplicate_blocks_the_next_is_found_when_the_first_is_gone() -> None:
    run = world(num_blocks=8)
    index = run.scheduler.rooms.kv.index
    run.submit(Job(prompt(8), 9))
    run.submit(Job(prompt(8), 9))  # its last block is a second copy, as the hit stops before it
    run.plan()
    first, second = (req.live[0] for req in run.scheduler.rooms.queues.running)
    digests = first.hashes[:2]
    one, other = first.table.blocks[1], second.table.blocks[1]
    assert one != other
    assert index.probe(digests, 2)[1] == one
    assert index.is_published(other)
    index.forget(one)
    assert index.probe(digests, 2)[1] == other
    index.forget(other)
    assert len(index.probe(digests, 2)) == 1


def test_a_block_whose_last_token_was_in_flight_becomes_findable_when_it_is_back() -> None:
    run = world(steps_in_flight=2, max_num_seqs=1)
    run.submit(Job(prompt(7), 2))  # computes 8 tokens: the second block is full at the end
    run.run()
    digests = run.requests[RequestId(0)].live or run.requests[RequestId(0)].sequences
    assert len(run.scheduler.rooms.kv.index.probe(digests[0].hashes, 2)) == 2


@pytest.mark.parametrize(
    ("undone", "found"), [(UndoneBlocks.STAY_FINDABLE, 5), (UndoneBlocks.WITHDRAWN, 4)]
)
def test_blocks_of_tokens_that_were_taken_back(undone: UndoneBlocks, found: int) -> None:
    run = world(
        num_blocks=7,
        policy=Policy.PRIORITY,
        long_prefill_token_threshold=8,
        rules=replace(VLLM_V1_RULES, undone_blocks=undone),
    )
    rid = run.submit(Job(prompt(24), 1, priority=5))
    run.turn()
    run.submit(Job(prompt(4, 50), 3, priority=0))
    run.turn()
    step = run.plan()  # its last chunk is planned, then taken back: the other needs a block
    assert step is not None
    assert [event.request_id for event in step.preempted] == [rid]
    assert [event.num_tokens for event in step.preempted] == [16]  # that is four blocks
    hashes = run.requests[rid].live[0].hashes
    assert len(run.scheduler.rooms.kv.index.probe(hashes, 9)) == found


# -- lengths -----------------------------------------------------------------------------


@pytest.mark.parametrize("steps_in_flight", [1, 2])
def test_a_request_stops_at_max_model_len_and_computes_nothing_beyond(steps_in_flight: int) -> None:
    run = world(max_model_len=10, steps_in_flight=steps_in_flight)
    run.submit(Job(prompt(6), 100))
    run.run()
    assert run.reason(RequestId(0)) is FinishReason.LENGTH
    assert len(run.tokens(RequestId(0))) == 4
    assert run.requests[RequestId(0)].sequences[0].computed == 9


# -- throttle ----------------------------------------------------------------------------


@pytest.mark.parametrize(("length", "starts"), [(9, True), (10, False)])
def test_a_held_back_step_starts_only_who_needs_one_token(length: int, starts: bool) -> None:
    run = world(throttle=(True,))
    run.submit(Job(prompt(8), 30))  # nobody decodes yet: it is not held back
    run.turn()
    run.submit(Job(prompt(length), 5))  # two blocks are hits
    run.plan()
    assert len(run.scheduler.rooms.queues.running) == 1 + starts


def test_a_budget_of_one_token_is_no_exception() -> None:
    run = world(throttle=(True,), max_num_batched_tokens=2, max_num_seqs=4)
    run.submit(Job(prompt(2), 30))
    run.turn()
    run.submit(Job(prompt(6, 50), 5))
    run.plan()  # one token of budget is left
    assert len(run.scheduler.rooms.queues.running) == 1


def test_a_running_prefill_is_held_back_only_while_somebody_decodes_and_nobody_waits() -> None:
    run = world(throttle=(False, True), max_num_batched_tokens=8)
    run.submit(Job(prompt(2, 50), 9))
    run.submit(Job(prompt(30), 3))
    throttle = run.scheduler.rooms.throttle
    run.turn()  # turn 1: asked for, but nobody decodes
    assert not throttle.capacity_bound
    run.turn()  # turn 2: not asked for
    held = run.turn()
    assert held is not None
    assert held.num_tokens == 1
    assert run.scheduler.requests[RequestId(1)].id * 8 in held.idle
    run.submit(Job(prompt(30, 70), 3))
    run.turn()  # turn 4: the newcomer stays outside
    assert throttle.capacity_bound
    free = run.turn()  # turn 5: asked for, refused
    assert free is not None
    assert free.num_tokens == 8


# -- victims and queues ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cursor", "num_tokens"), [(CursorRule.VLLM_0_25, 1), (CursorRule.EXACT, 2)]
)
def test_behind_a_victim_without_tokens_one_request_is_passed_over(
    cursor: CursorRule, num_tokens: int
) -> None:
    run = world(
        num_blocks=4,
        policy=Policy.PRIORITY,
        long_prefill_token_threshold=4,
        prefix_caching=False,
        throttle=(False, False, False, True),
        rules=replace(VLLM_V1_RULES, cursor=cursor),
    )
    first = run.submit(Job(prompt(12), 1, priority=9))
    run.turn()
    run.submit(Job(prompt(4, 50), 3, priority=1))
    run.submit(Job(prompt(4, 60), 3, priority=1))
    run.turn()
    step = run.turn()  # the first is held back, and yields to the second, which needs a block
    assert step is not None
    assert [event.request_id for event in step.preempted] == [first]
    assert step.num_tokens == num_tokens
    assert len(step.idle) == 2 - num_tokens
    run.run()


def test_fcfs_victims_go_to_the_head_of_waiting_the_last_one_first() -> None:
    run = world(num_blocks=6, prefix_caching=False)
    for start in (0, 20, 40, 60):
        run.submit(Job(prompt(4, start), 20))
    run.submit(Job(prompt(20, 80), 2))
    run.turn()
    step = run.turn()  # four want a second block, two are free
    assert step is not None
    assert [event.request_id for event in step.preempted] == [3]
    waiting = [req.id for req in run.scheduler.rooms.queues.waiting]
    assert waiting == [3, 4]
    run.run()


def test_the_watermark_counts_the_null_block_and_only_while_something_runs() -> None:
    limits = vllm_v1(Limits(num_blocks=19, block_size=4, watermark=0.1))
    assert limits.watermark_blocks == 2
    run = world(num_blocks=9, watermark=0.1, prefix_caching=False)
    run.submit(Job(prompt(36), 1))  # the whole pool, but nothing runs
    run.turn()
    assert len(run.ended) == 1
    run.submit(Job(prompt(8), 3))
    run.submit(Job(prompt(28, 50), 3))  # seven blocks are free, one is kept
    run.plan()
    assert len(run.scheduler.rooms.queues.running) == 1


# -- loads -------------------------------------------------------------------------------


def test_an_aborted_load_keeps_its_blocks_until_it_is_complete() -> None:
    run = world(num_blocks=8)
    rid = run.submit(Job(prompt(17), 3, external=16, load_turns=3))
    run.turn()
    assert isinstance(run.requests[rid].state, Loading)
    run.abort(rid)
    assert run.scheduler.rooms.queues.parked == []
    assert run.scheduler.has_work
    assert run.scheduler.gauges().blocks_free == 4
    run.run()
    assert run.scheduler.gauges().blocks_free == 8


def test_a_complete_load_that_is_aborted_frees_at_once() -> None:
    run = world(num_blocks=8, max_num_seqs=1)
    rid = run.submit(Job(prompt(17), 3, external=16))
    run.turn()
    assert isinstance(run.requests[rid].state, Loaded)
    run.abort(rid)
    assert run.scheduler.gauges().blocks_free == 8
    assert not run.scheduler.has_work


def test_after_a_failed_load_the_prompt_is_computed() -> None:
    run = world()
    for _ in range(3):  # the driver fails each third load of jobs that ask for it
        rid = run.submit(Job(prompt(9, 30), 3, external=8, load_turns=-1))
    run.turn()
    run.turn()
    assert run.requests[rid].state == Queued(QueuedWhy.LOAD_FAILED)
    assert run.requests[rid].live[0].table.blocks == []
    run.run()
    assert len(run.tokens(rid)) == 3


def test_loads_leave_room_for_prefills_that_started_in_the_same_step() -> None:
    for num_blocks, starts in ((12, True), (11, False)):
        run = world(num_blocks=num_blocks, long_prefill_token_threshold=8, prefix_caching=False)
        run.submit(Job(prompt(24), 2))  # two blocks with its first chunk, four are owed to it
        run.submit(Job(prompt(24, 50), 2, external=24))
        run.plan()
        assert len(run.scheduler.rooms.queues.parked) == starts
        run.turn()


# -- the preset --------------------------------------------------------------------------


def test_sizes_with_which_the_reference_does_not_start_are_refused() -> None:
    limits = Limits(
        num_blocks=9,
        block_size=4,
        chunked_prefill=False,
        max_num_batched_tokens=8,
        max_model_len=9,
    )
    with pytest.raises(ConfigError, match=r"max_num_batched_tokens \(8\) of at least"):
        vllm_v1(limits)


def test_groups_are_refused_with_what_is_possible() -> None:
    run = world()
    rid = run.submit(Job(prompt(4), 2, n=2))
    assert "n is 2: 1 to 1 sequences" in run.refused[rid].message
    assert seq_id(rid, 0) not in run.ended
