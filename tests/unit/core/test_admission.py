from typing import Any

import pytest

from forebay.core.admission import BringBack, Start, Stop
from forebay.core.draft import StepDraft
from forebay.core.lifecycle import Queued, QueuedWhy, Swapped
from forebay.core.rooms import Rooms
from tests.unit.core.parts import limits, request, running


def verdict(rooms: Rooms, req: Any, budget: int = 99) -> Start | BringBack | Stop:
    draft = StepDraft.start(limits(max_num_batched_tokens=budget), 0)
    return rooms.admission.decide(req, draft)


@pytest.mark.parametrize(
    ("p", "seats", "more", "wanted"),
    [
        (6, 1, {}, Start),
        (6, 1, {"watermark": 0.9}, Stop()),
        (6, 1, {"watermark": 0.3}, Start),
        (24, 1, {}, Start),
        (25, 1, {}, Stop(blocks_short=1)),
        (6, 3, {"max_num_seqs": 3}, Stop(seats_short=1)),
        (6, 2, {"max_num_seqs": 3}, Start),
        (6, 1, {"chunked_prefill": False}, Start),
        (17, 1, {"chunked_prefill": False}, Stop()),
    ],
)
def test_beside_a_runner_of_two_blocks(p: int, seats: int, more: Any, wanted: Any) -> None:
    rooms = Rooms.build(limits(**more))
    running(rooms, request(0, p=6), computed=6)
    got = verdict(rooms, request(1, p=p, num_branches=seats), budget=16)
    assert isinstance(got, Start) if wanted is Start else got == wanted


def test_on_an_idle_engine_the_watermark_does_not_count() -> None:
    assert isinstance(verdict(Rooms.build(limits(watermark=0.9)), request(p=30)), Start)


def test_a_more_urgent_request_is_judged_by_room_alone() -> None:
    rooms = Rooms.build(limits(watermark=0.9, expected_output_share=1.0))
    running(rooms, request(0, p=6, priority=5), computed=6)
    assert isinstance(verdict(rooms, request(1, p=6, priority=0)), Start)
    assert verdict(rooms, request(1, p=6, priority=5)) == Stop()
    assert verdict(rooms, request(1, p=32, priority=0)) == Stop(blocks_short=2)


def test_no_token_is_left_in_the_step() -> None:
    assert verdict(Rooms.build(limits()), request(), budget=0) == Stop()


def test_who_is_to_be_recomputed_waits_for_its_tokens_in_flight() -> None:
    rooms = Rooms.build(limits())
    req = request()
    req.state = Queued(QueuedWhy.PREEMPTED)
    req.sequences[0].pending = 1
    assert verdict(rooms, req) == Stop()
    req.sequences[0].pending = 0
    assert isinstance(verdict(rooms, req), Start)


def test_without_chunks_a_resumed_request_may_take_several_steps() -> None:
    rooms = Rooms.build(limits(chunked_prefill=False))
    req = request(p=17)
    assert verdict(rooms, req, budget=16) == Stop()
    req.state = Queued(QueuedWhy.PREEMPTED)
    assert isinstance(verdict(rooms, req, budget=16), Start)


def test_a_swapped_request_is_brought_back_when_its_blocks_and_the_next_fit() -> None:
    rooms = Rooms.build(limits(num_host_blocks=8))
    req = running(rooms, request(0, p=8, m=20), computed=8, known=9)
    run, _ = rooms.kv.swap_out(req, None)
    rooms.queues.remove(req)
    req.state = Swapped(run)
    assert verdict(rooms, req) == BringBack(run, 3)
    running(rooms, request(1, p=24), computed=24)
    assert verdict(rooms, req) == Stop(blocks_short=1)
