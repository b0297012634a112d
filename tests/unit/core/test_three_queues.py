import pytest

from forebay.core.lifecycle import Queued, QueuedWhy, Running, Swapped
from forebay.core.request import Request
from forebay.core.swap import HostRun
from forebay.core.three_queues import ThreeQueues
from forebay.errors import InvariantError
from tests.unit.core.parts import request

SWAPPED = Swapped(HostRun({}, ()))
PREEMPTED = Queued(QueuedWhy.PREEMPTED)


def moved(queues: ThreeQueues, req: Request, state: Queued | Running | Swapped) -> None:
    queues.remove(req)
    req.state = state
    queues.insert(req)


def test_each_queue_keeps_the_order_of_entering() -> None:
    queues = ThreeQueues()
    made = [request(4), request(1, priority=2), request(3)]
    for req in made:
        queues.insert(req)
    assert [req.id for req in queues.queued] == [4, 1, 3]
    moved(queues, made[2], SWAPPED)
    moved(queues, made[0], SWAPPED)
    assert [req.id for req in queues.swapped] == [3, 4]
    assert queues.num_swapped == 2
    assert sorted(req.id for req in queues.waiting) == [1, 3, 4]
    assert queues.disorder() == []


def test_victims_stay_aside_until_the_step_is_planned_then_come_first_the_latest_foremost() -> None:
    queues = ThreeQueues()
    made = [request(rid) for rid in range(4)]
    for req in made:
        queues.insert(req)
    for req in made[:3]:
        moved(queues, req, Running())
    moved(queues, made[2], PREEMPTED)
    moved(queues, made[1], PREEMPTED)
    assert [req.id for req in queues.queued] == [3]
    assert sorted(req.id for req in queues.waiting) == [1, 2, 3]
    queues.settle([made[0]])
    assert [req.id for req in queues.queued] == [1, 2, 3]
    assert [req.id for req in queues.running] == [0]
    moved(queues, made[2], Running())
    assert [req.id for req in queues.queued] == [1, 3]


def test_a_new_order_must_name_the_same_requests() -> None:
    queues = ThreeQueues()
    req = request(1)
    queues.insert(req)
    moved(queues, req, Running())
    for order in ([], [req, req], [request(1)]):
        with pytest.raises(InvariantError, match="same requests"):
            queues.settle(order)


@pytest.mark.parametrize("state", [PREEMPTED, Queued(QueuedWhy.NEW), Running(), SWAPPED])
def test_a_request_must_be_where_its_state_says(state: Queued | Running | Swapped) -> None:
    req = request(1)
    req.state = state
    with pytest.raises(InvariantError, match="not in its queue"):
        ThreeQueues().remove(req)
