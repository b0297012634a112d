from typing import Any

import pytest

from forebay.core.effects import Yield
from forebay.core.limits import Costs, PreemptionMode
from forebay.core.request import Request
from forebay.core.rooms import Rooms
from tests.unit.core.parts import limits, request, running


def crowd(rooms: Rooms, *shapes: tuple[int, int, int]) -> list[Request]:
    """Running requests of (prompt, priority, preemptions), in order of arrival."""
    made = []
    for rid, (p, priority, preemptions) in enumerate(shapes):
        req = running(rooms, request(rid, p=p, priority=priority), computed=p)
        req.num_preemptions = preemptions
        made.append(req)
    return made


@pytest.mark.parametrize(
    ("asker", "shortage", "counts", "chosen"),
    [
        (0, 1, (0, 0, 0), [2]),
        (0, 2, (0, 0, 0), [2]),
        (0, 3, (0, 0, 0), [2, 1]),
        (0, 5, (0, 0, 0), []),
        (1, 1, (0, 0, 0), [2]),
        (2, 1, (0, 0, 0), []),
        # passed over: as many as `max_preemption_lead` (3) ahead of a running equal
        (0, 1, (0, 0, 3), [1]),
        (0, 1, (0, 0, 2), [2]),
        (0, 1, (1, 1, 3), [2]),
        (0, 1, (0, 3, 3), [0]),
        (1, 1, (0, 0, 3), []),
        (0, 3, (0, 0, 3), [0]),
    ],
)
def test_who_yields_for_growth(
    asker: int, shortage: int, counts: tuple[int, ...], chosen: list[int]
) -> None:
    rooms = Rooms.build(limits())
    made = crowd(rooms, *((6, 0, count) for count in counts))
    got = rooms.victims.for_growth(made[asker], shortage, rooms.queues.running)
    assert [req.id for req in got] == chosen


def test_the_guard_compares_with_equals_only() -> None:
    rooms = Rooms.build(limits())
    made = crowd(rooms, (6, 0, 0), (6, 5, 9), (6, 5, 9))
    got = rooms.victims.for_growth(made[0], 1, rooms.queues.running)
    assert [req.id for req in got] == [2]


@pytest.mark.parametrize(
    ("urgency", "blocks", "seats", "chosen"),
    [
        (0, 1, 0, [3]),
        (0, 0, 1, [3]),
        (0, 3, 0, [3, 2]),
        (0, 0, 3, [3, 2, 1]),
        (0, 7, 0, []),
        (4, 1, 0, [3]),
        (4, 3, 0, []),
        (5, 1, 1, []),
    ],
)
def test_who_yields_for_a_more_urgent_request(
    urgency: int, blocks: int, seats: int, chosen: list[int]
) -> None:
    rooms = Rooms.build(limits())
    crowd(rooms, (6, 0, 0), (6, 1, 0), (6, 4, 9), (6, 5, 9))
    asker = request(9, priority=urgency)
    got = rooms.victims.for_urgent(asker, blocks, seats, rooms.queues.running)
    assert [req.id for req in got] == chosen


CHEAP_SWAP = Costs(prefill_ns_per_token=10, swap_ns_per_block=1)
DEAR_SWAP = Costs(prefill_ns_per_token=1, swap_ns_per_block=10)


@pytest.mark.parametrize(
    ("more", "computed", "how", "lacks"),
    [
        ({"preemption_mode": PreemptionMode.RECOMPUTE}, 6, Yield.RECOMPUTE, False),
        ({"preemption_mode": PreemptionMode.SWAP}, 6, Yield.SWAP, False),
        ({"preemption_mode": PreemptionMode.SWAP}, 0, Yield.RECOMPUTE, False),
        ({"preemption_mode": PreemptionMode.SWAP, "num_host_blocks": 1}, 6, Yield.RECOMPUTE, True),
        ({"preemption_mode": PreemptionMode.SWAP, "num_host_blocks": 1}, 4, Yield.SWAP, False),
        ({"costs": CHEAP_SWAP}, 6, Yield.SWAP, False),
        ({"costs": DEAR_SWAP}, 6, Yield.RECOMPUTE, False),
        ({"costs": CHEAP_SWAP, "num_host_blocks": 1}, 6, Yield.RECOMPUTE, True),
    ],
)
def test_how_a_victim_yields(more: Any, computed: int, how: Yield, lacks: bool) -> None:
    rooms = Rooms.build(limits(**{"num_host_blocks": 4, **more}))
    req = running(rooms, request(p=7), computed=computed)
    assert rooms.victims.how(req) is how
    assert rooms.victims.lacks_host_room(req) is lacks


def test_a_group_in_the_middle_of_its_replay_is_not_swapped() -> None:
    rooms = Rooms.build(limits(preemption_mode=PreemptionMode.SWAP, num_host_blocks=8))
    req = running(rooms, request(p=8, num_branches=2), computed=4)
    req.shared_tokens = 8
    assert rooms.victims.how(req) is Yield.RECOMPUTE
    req.sequences[0].computed = 8
    assert rooms.victims.how(req) is Yield.SWAP
