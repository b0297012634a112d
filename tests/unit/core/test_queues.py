import pytest

from forebay.core.events import FinishReason
from forebay.core.lifecycle import Finished, Queued, QueuedWhy, Running, Swapped
from forebay.core.queues import Queues
from forebay.core.swap import HostRun
from forebay.errors import InvariantError
from tests.unit.core.parts import request

SWAPPED = Swapped(HostRun({}, ()))


def test_both_queues_are_in_the_one_order_whoever_comes_first() -> None:
    queues = Queues()
    made = [request(4), request(1, priority=2), request(3), request(2, priority=-1)]
    for req in made:
        queues.insert(req)
    assert [req.id for req in queues.waiting] == [2, 3, 4, 1]
    for req in made:
        queues.remove(req)
        req.state = Running()
        queues.insert(req)
    assert [req.id for req in queues.running] == [2, 3, 4, 1]
    assert queues.waiting == []


def test_equal_arrivals_are_told_apart_by_id() -> None:
    queues = Queues()
    for rid in (2, 0, 1):
        queues.insert(request(rid, arrival_ns=7))
    assert [req.id for req in queues.waiting] == [0, 1, 2]


def test_swapped_requests_wait_and_are_counted() -> None:
    queues = Queues()
    req = request()
    req.state = SWAPPED
    queues.insert(req)
    assert (queues.waiting, queues.num_swapped) == ([req], 1)
    queues.remove(req)
    assert (queues.waiting, queues.num_swapped) == ([], 0)


def test_finished_requests_are_in_no_queue() -> None:
    queues = Queues()
    req = request()
    req.state = Finished(FinishReason.STOP)
    queues.insert(req)
    queues.remove(req)
    assert queues.waiting == queues.running == []


@pytest.mark.parametrize("state", [Queued(QueuedWhy.PREEMPTED), Running(), SWAPPED])
def test_a_request_must_be_where_its_state_says(state: Queued | Running | Swapped) -> None:
    queues = Queues()
    queues.insert(request(1))
    req = request(1)
    req.state = state
    with pytest.raises(InvariantError, match="not in its queue"):
        queues.remove(req)
