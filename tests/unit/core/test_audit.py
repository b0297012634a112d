"""The audit sees each kind of damage, and nothing where there is none."""

from collections.abc import Callable

import pytest

from forebay.core.audit import audit, audit_step
from forebay.core.effects import Step
from forebay.core.events import FinishReason
from forebay.core.lifecycle import Finished, Queued, QueuedWhy
from forebay.core.limits import PreemptionMode
from forebay.core.scheduler import Scheduler
from tests.cases.scenes import job, turns, world


def busy() -> Scheduler:
    """Two run, one is swapped, one waits."""
    scene = world(
        7,
        *(job(7, 9, key) for key in range(3)),
        job(8, 9, 3),
        max_num_seqs=3,
        preemption_mode=PreemptionMode.SWAP,
        num_host_blocks=4,
    )
    turns(scene, 3)
    gauges = scene.scheduler.gauges()
    assert (gauges.num_running, gauges.num_swapped, gauges.num_waiting) == (2, 1, 1)
    return scene.scheduler


def table_of(scheduler: Scheduler, rid: int) -> list[int]:
    return scheduler.requests[rid].sequences[0].table.blocks


def lose_a_block(s: Scheduler) -> None:
    table_of(s, 0).pop()


def have_one_twice(s: Scheduler) -> None:
    table_of(s, 0).append(table_of(s, 0)[0])


def steal_a_block(s: Scheduler) -> None:
    table_of(s, 0)[0] = table_of(s, 1)[0]


def free_a_held_one(s: Scheduler) -> None:
    s.rooms.kv.pool._free[table_of(s, 0)[0]] = None


def lose_a_free_one(s: Scheduler) -> None:
    s.rooms.kv.pool._free.popitem()


def lose_a_host_slot(s: Scheduler) -> None:
    s.rooms.kv.host._used.pop()


def turn_the_queue(s: Scheduler) -> None:
    s.rooms.queues.running.reverse()


def run_a_queued_one(s: Scheduler) -> None:
    s.rooms.queues.running.append(s.rooms.queues.waiting[-1])


def make_a_runner_wait(s: Scheduler) -> None:
    s.rooms.queues.running[0].state = Queued(QueuedWhy.PREEMPTED)


def compute_more_than_there_is(s: Scheduler) -> None:
    s.requests[0].sequences[0].computed = 99


def expect_less_than_nothing(s: Scheduler) -> None:
    s.requests[0].sequences[0].pending = -1


def go_past_the_limit(s: Scheduler) -> None:
    s.requests[0].sequences[0].known = 99


def keep_the_ended(s: Scheduler) -> None:
    s.requests[0].state = Finished(FinishReason.STOP)


def end_but_hold(s: Scheduler) -> None:
    s.requests[0].sequences[0].finish = FinishReason.STOP


def wait_for_ever(s: Scheduler) -> None:
    seq = s.requests[3].sequences[0]
    seq.known = seq.limit = 99
    seq.limit += 9


def forget_an_arrival(s: Scheduler) -> None:
    s.tally.requests_arrived -= 1


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (lose_a_block, "Q1: block"),
        (have_one_twice, "has a block twice"),
        (steal_a_block, "Q1: block"),
        (free_a_held_one, "wrong list"),
        (lose_a_free_one, "wrong list"),
        (lose_a_host_slot, "host slots"),
        (turn_the_queue, "out of order"),
        (run_a_queued_one, "runs in state"),
        (make_a_runner_wait, "Q4: request 0 waits but holds"),
        (compute_more_than_there_is, "impossible counters"),
        (expect_less_than_nothing, "impossible counters"),
        (go_past_the_limit, "impossible counters"),
        (keep_the_ended, "Q9: request 0 has ended"),
        (end_but_hold, "has ended but holds blocks"),
        (wait_for_ever, "Q3: request 3 needs"),
        (forget_an_arrival, "Q9: 3 arrived, but"),
    ],
)
def test_damage_is_seen(damage: Callable[[Scheduler], None], told: str) -> None:
    scheduler = busy()
    assert audit(scheduler) == []
    damage(scheduler)
    assert any(told in fault for fault in audit(scheduler)), audit(scheduler)


def spend_too_much(s: Scheduler, step: Step) -> None:
    step.num_tokens = s.limits.max_num_batched_tokens + 1


def miscount(s: Scheduler, step: Step) -> None:
    step.num_tokens += 1


def forget_a_row(s: Scheduler, step: Step) -> None:
    s.rooms.actions.batch.pop()


def seat_too_many(s: Scheduler, step: Step) -> None:
    s.rooms.queues.running.extend(s.rooms.queues.running * 2)


def say_that_a_runner_yielded(s: Scheduler, step: Step) -> None:
    (event,) = busy_events()
    step.preempted.append(type(event)(0, event.how, event.cause, 1, 1))


def busy_events() -> list:
    scene = world(4, job(7, 9, 0), job(7, 9, 1))
    turns(scene, 3)
    return scene.preempted


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (spend_too_much, "exceed"),
        (miscount, "but the step says"),
        (forget_a_row, "Q5: rows"),
        (seat_too_many, "seats taken"),
        (say_that_a_runner_yielded, "left a trace"),
    ],
)
def test_a_damaged_step_is_seen(damage: Callable[[Scheduler, Step], None], told: str) -> None:
    scheduler = busy()
    step = scheduler.plan(9)
    assert step is not None
    assert audit_step(scheduler, step) == []
    damage(scheduler, step)
    assert any(told in fault for fault in audit_step(scheduler, step)), audit_step(scheduler, step)
