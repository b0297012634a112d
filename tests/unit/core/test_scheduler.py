"""The contract of `handle`, `tick`, `plan` and of the step that is returned."""

import pytest

from forebay.core.effects import Chunk, Ended, Fork, Join, JoinKind, Leave, LeaveKind, Refuse, Step
from forebay.core.events import Abort, BlockFilled, FinishReason, StepDone
from forebay.core.scheduler import Scheduler
from forebay.errors import InvariantError
from tests.unit.core.parts import arrive, limits


def planned(scheduler: Scheduler) -> Step:
    step = scheduler.plan(0)
    assert step is not None
    return step


def scheduler_of(*specs: object, **more: object) -> Scheduler:
    scheduler = Scheduler(limits(**more))
    for spec in specs:
        scheduler.handle(spec, 0)
    return scheduler


def test_a_request_from_arrival_to_end() -> None:
    scheduler = scheduler_of(arrive(0, p=6, m=2))
    step = planned(scheduler)
    assert step.joined == [Join(0, JoinKind.NEW, 0, 6, (0, 1))]
    assert step.chunks == [Chunk(0, 0, 6, True)]
    assert (step.num_tokens, step.num_rows, step.idle) == (6, 1, [])
    assert scheduler.handle(StepDone(seq=1), 5) == []
    step = planned(scheduler)
    assert step == Step(seq=2, num_tokens=1, num_rows=1)
    (ended,) = scheduler.handle(StepDone(seq=2), 9)
    assert isinstance(ended, Ended)
    assert (ended.reason, ended.num_output) == (FinishReason.LENGTH, 2)
    assert ended.report is not None
    assert (ended.report.queue_ns, ended.report.total_ns) == (0, 9)
    assert not scheduler.has_work
    scheduler.handle(arrive(1), 9)
    step = planned(scheduler)
    assert step.left == [Leave(0, LeaveKind.FINISHED)]
    assert step.ended == [0]


def test_nothing_to_do_is_no_step() -> None:
    scheduler = scheduler_of()
    assert scheduler.plan(0) is None
    assert scheduler.tally.steps == 0


def test_no_more_steps_go_out_than_may_be_in_flight() -> None:
    scheduler = scheduler_of(arrive(), steps_in_flight=2)
    assert [planned(scheduler).seq for _ in range(2)] == [1, 2]
    assert scheduler.plan(0) is None
    assert scheduler.num_in_flight == 2
    scheduler.handle(StepDone(seq=1), 0)
    assert planned(scheduler).seq == 3


def test_steps_are_reported_in_order_and_once() -> None:
    scheduler = scheduler_of(arrive(), steps_in_flight=2)
    planned(scheduler), planned(scheduler)
    with pytest.raises(InvariantError, match="1 is the oldest"):
        scheduler.handle(StepDone(seq=2), 0)
    scheduler.handle(StepDone(seq=1), 0)
    with pytest.raises(InvariantError, match="2 is the oldest"):
        scheduler.handle(StepDone(seq=1), 0)


def test_a_stop_drops_what_a_later_step_in_flight_sampled() -> None:
    scheduler = scheduler_of(arrive(m=9), steps_in_flight=2)
    planned(scheduler), planned(scheduler)
    (ended,) = scheduler.handle(StepDone(seq=1, stops=(0,)), 0)
    assert isinstance(ended, Ended)
    assert (ended.reason, ended.num_output) == (FinishReason.STOP, 1)
    assert scheduler.handle(StepDone(seq=2), 0) == []
    assert scheduler.gauges().blocks_free == 8


def test_a_block_that_a_stop_completes_is_not_published() -> None:
    """With a step in flight its last slot may be counted as computed, but need not be written."""
    for stops, found in [((), 1), ((0,), 0)]:
        scheduler = scheduler_of(arrive(p=3, m=9), steps_in_flight=2)
        planned(scheduler), planned(scheduler)
        filled = (BlockFilled(0, 0, b"x"),)
        scheduler.handle(StepDone(seq=1, stops=stops, filled=filled), 0)
        assert len(scheduler.rooms.kv.index) == found


def test_a_group_forks_when_its_prompt_is_done() -> None:
    scheduler = scheduler_of(arrive(p=6, m=3, num_branches=3), max_num_batched_tokens=4)
    step = planned(scheduler)
    assert (step.chunks, step.forks) == ([Chunk(0, 0, 4, False)], [])
    scheduler.handle(StepDone(seq=1), 0)
    step = planned(scheduler)
    assert (step.chunks, step.forks) == ([Chunk(0, 4, 2, True)], [Fork(0, (1, 2))])
    assert (step.num_tokens, step.num_rows, step.idle) == (2, 1, [])
    scheduler.handle(StepDone(seq=2, stops=(1,)), 0)
    step = planned(scheduler)
    assert step.left == [Leave(1, LeaveKind.FINISHED)]
    assert (step.num_tokens, len(step.copies)) == (2, 1)


def test_an_abort_ends_every_sequence_asked_for_and_unknown_ids_are_ignored() -> None:
    scheduler = scheduler_of(arrive(num_branches=3))
    effects = scheduler.handle(Abort(request_id=0), 4)
    assert [(end.seq_id, end.reason, end.num_output) for end in effects] == [
        (branch, FinishReason.ABORT, 0) for branch in range(3)
    ]
    assert [end.report is not None for end in effects] == [False, False, True]
    assert scheduler.handle(Abort(request_id=0), 5) == []
    assert scheduler.handle(Abort(request_id=77), 5) == []


def test_an_abort_may_name_another_reason() -> None:
    scheduler = scheduler_of(arrive())
    (ended,) = scheduler.handle(Abort(request_id=0, reason=FinishReason.ERROR), 4)
    assert ended.reason is FinishReason.ERROR


def test_deadlines_end_whoever_is_late_and_tell_when_to_wake_up() -> None:
    scheduler = scheduler_of(
        arrive(0, deadline_ns=30), arrive(1, deadline_ns=20), arrive(2, deadline_ns=10), arrive(3)
    )
    scheduler.handle(Abort(request_id=2), 0)
    assert scheduler.next_wakeup() == 20
    assert scheduler.tick(19) == []
    ends = scheduler.tick(30)
    assert [(end.seq_id // 8, end.reason) for end in ends] == [
        (1, FinishReason.DEADLINE),
        (0, FinishReason.DEADLINE),
    ]
    assert scheduler.next_wakeup() is None
    assert list(scheduler.requests) == [3]


def test_an_id_in_use_is_a_bug_of_the_caller() -> None:
    scheduler = scheduler_of(arrive(0))
    with pytest.raises(InvariantError, match="in use"):
        scheduler.handle(arrive(0), 0)


def test_a_refused_request_leaves_nothing_behind() -> None:
    scheduler = scheduler_of()
    (refused,) = scheduler.handle(arrive(p=99), 0)
    assert isinstance(refused, Refuse)
    assert (scheduler.has_work, scheduler.tally.requests_refused) == (False, 1)


def test_rows_without_budget_are_idle() -> None:
    scheduler = scheduler_of(arrive(0, p=3), arrive(1, p=8), max_num_batched_tokens=3)
    planned(scheduler)
    scheduler.handle(StepDone(seq=1), 0)
    step = planned(scheduler)
    assert [join.seq_id for join in step.joined] == [8]
    assert step.chunks == [Chunk(8, 0, 2, False)]
    scheduler.handle(StepDone(seq=2), 0)
    scheduler.handle(Abort(request_id=1), 0)
    scheduler.handle(arrive(2, p=3, m=1), 0)
    assert planned(scheduler).idle == []


def test_a_row_whose_last_token_is_in_flight_is_idle() -> None:
    scheduler = scheduler_of(arrive(0, p=3, m=1), arrive(1, p=3, m=5), steps_in_flight=2)
    planned(scheduler)
    step = planned(scheduler)
    assert (step.idle, step.num_rows) == ([0], 1)


def test_decoders_are_planned_before_prompts() -> None:
    scheduler = scheduler_of(arrive(0, p=12), max_num_batched_tokens=5)
    planned(scheduler)
    scheduler.handle(StepDone(seq=1), 0)
    scheduler.handle(arrive(1, p=2), 0)
    for seq in (2, 3):
        planned(scheduler)
        scheduler.handle(StepDone(seq=seq), 0)
    assert scheduler.requests[1].sequences[0].known == 3
    scheduler.handle(arrive(2, p=12), 0)
    step = planned(scheduler)
    assert [(chunk.seq_id, chunk.num_tokens) for chunk in step.chunks] == [(16, 3)]
    assert step.num_tokens == 5
