from typing import Any

import pytest

from forebay.core.limits import Costs, PreemptionMode
from forebay.core.rooms import Rooms
from tests.unit.core.parts import limits, request, running

FREE_SWAP = Costs(prefill_ns_per_token=1_000_000, step_overhead_ns=10**12, swap_ns_per_block=1)
DEAR = Costs(prefill_ns_per_token=10**9, step_overhead_ns=1, swap_ns_per_block=10**9)


@pytest.mark.parametrize(
    ("blocks", "m", "more", "pays"),
    [
        (40, 20, {}, True),  # both fit to their ends
        (8, 20, {"costs": DEAR}, False),  # the pool fills before, and returning never pays
        (8, 20, {"costs": FREE_SWAP, "num_host_blocks": 9}, True),  # returning costs nothing
        (8, 20, {"costs": DEAR, "expected_output_share": 0.0}, True),  # nothing is expected
        (8, 2, {"costs": DEAR}, True),  # the candidate ends before the pool is full
    ],
)
def test_does_it_pay_to_start(blocks: int, m: int, more: Any, pays: bool) -> None:
    rooms = Rooms.build(limits(num_blocks=blocks, **{"expected_output_share": 1.0, **more}))
    running(rooms, request(0, p=6, m=20), computed=6)
    late = request(1, p=6, m=m)
    assert rooms.outlook.pays(late, rooms.kv.probe(late).cost) is pays


def test_cheap_swapping_counts_only_with_host_room_and_in_its_mode() -> None:
    for more, pays in [
        ({"num_host_blocks": 9}, True),
        ({"num_host_blocks": 1}, False),
        ({"num_host_blocks": 9, "preemption_mode": PreemptionMode.RECOMPUTE}, False),
    ]:
        costs = Costs(prefill_ns_per_token=10**9, step_overhead_ns=10**9, swap_ns_per_block=1)
        rooms = Rooms.build(limits(costs=costs, expected_output_share=1.0, **more))
        running(rooms, request(0, p=6, m=20), computed=6)
        late = request(1, p=6, m=20)
        assert rooms.outlook.pays(late, 2) is pays


def test_outputs_that_stopped_early_shorten_what_is_expected() -> None:
    rooms = Rooms.build(limits(costs=DEAR, expected_output_share=1.0))
    running(rooms, request(0, p=6, m=20, runs_to_limit=True), computed=6)
    late, sure = request(1, p=6, m=20), request(2, p=6, m=20, runs_to_limit=True)
    assert not rooms.outlook.pays(late, 2)
    rooms.outlook.note_stopped(2)
    assert rooms.outlook.pays(late, 2)
    assert not rooms.outlook.pays(sure, 2)
    for _ in range(200):
        rooms.outlook.note_stopped(18)
    assert not rooms.outlook.pays(late, 2)
