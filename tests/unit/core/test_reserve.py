import pytest

from forebay.core.reserve import ReserveToLimit
from forebay.core.rooms import Rooms
from tests.unit.core.parts import limits, request, running


@pytest.mark.parametrize(
    ("num_blocks", "starts"),
    [
        (8, True),  # 4 blocks at 15 computed tokens, twice
        (7, False),
    ],
)
def test_all_that_run_must_fit_at_their_limit(num_blocks: int, starts: bool) -> None:
    rooms = Rooms.build(limits(num_blocks=num_blocks))
    running(rooms, request(1), computed=6)
    reserve = ReserveToLimit(rooms.limits, rooms.kv, rooms.queues)
    assert reserve.pays(request(2), cost=2) is starts


def test_the_last_token_needs_no_block_and_branches_share_the_prompt() -> None:
    rooms = Rooms.build(limits(num_blocks=8))
    reserve = ReserveToLimit(rooms.limits, rooms.kv, rooms.queues)
    assert reserve.pays(request(1, p=8, m=25), cost=2)  # 32 of 33 tokens
    assert not reserve.pays(request(1, p=8, m=26), cost=2)
    assert reserve.pays(request(1, p=8, m=13, num_branches=2), cost=2)  # 2 shared, 3 each
    assert not reserve.pays(request(1, p=8, m=14, num_branches=2), cost=2)
    reserve.note_stopped(1)
    assert not reserve.pays(request(1, p=8, m=26), cost=2)
