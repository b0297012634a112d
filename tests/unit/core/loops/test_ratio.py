from forebay.core.draft import StepDraft
from forebay.core.loops.ratio import RatioLoop
from forebay.core.presets import ratio
from forebay.core.request import Request
from forebay.core.rooms import Rooms
from forebay.core.token_ratio import TokenRatio
from forebay.units import Nanos
from tests.unit.core.parts import limits, request, running


def decoding(rooms: Rooms, req: Request, num_output: int) -> Request:
    """A request that needs a block for its next token."""
    req = running(rooms, req, computed=req.spec.num_prompt)
    for seq in req.live:
        grown = num_output - 1
        rooms.kv.grow(req, seq, grown)
        seq.computed += grown
        seq.known = seq.computed + 1
    return req


def planned(rooms: Rooms) -> StepDraft:
    draft = StepDraft.start(rooms.limits, Nanos(0))
    RatioLoop(rooms).plan(draft)
    return draft


def test_who_generated_least_is_retracted_then_the_longest_prompt_then_the_latest() -> None:
    rooms = Rooms.build(ratio(limits(num_blocks=8)))
    decoding(rooms, request(1, p=4, m=30), 5)  # 2 blocks, asks for a third
    decoding(rooms, request(2, p=4, m=30), 1)
    decoding(rooms, request(3, p=8, m=30), 1)
    decoding(rooms, request(4, p=8, m=30), 1)
    draft = planned(rooms)  # 7 of 8 blocks held, 4 asked for: one free and 2 of request 4 is 3
    assert [event.request_id for event in draft.preempted] == [4]
    assert [req.id for req in rooms.queues.running] == [1, 2, 3]
    assert len(draft.planned) == 3
    assert isinstance(rooms.outlook, TokenRatio)
    assert rooms.outlook.ratio == (5 + 1 + 1 + 20 * 3) / 90


def test_at_least_one_stays() -> None:
    rooms = Rooms.build(ratio(limits(num_blocks=4)))
    decoding(rooms, request(1, p=8, m=9), 1)
    decoding(rooms, request(2, p=8, m=9), 1)
    draft = planned(rooms)
    assert [event.request_id for event in draft.preempted] == [2]
    assert [seq.id for seq in draft.planned] == [8]


def test_memory_of_ending_requests_is_waited_for() -> None:
    rooms = Rooms.build(ratio(limits(num_blocks=4, steps_in_flight=2)))
    ending = decoding(rooms, request(1, p=8, m=2), 1)
    ending.live[0].pending = 1
    decoding(rooms, request(2, p=8, m=9), 1)
    draft = planned(rooms)
    assert draft.preempted == []
    assert draft.planned == {}
    assert rooms.actions.tally.stalled_rows == 1


def test_the_share_sinks_while_decoding_finds_its_blocks_and_is_restored_when_idle() -> None:
    rooms = Rooms.build(ratio(limits(num_blocks=8)))
    assert isinstance(rooms.outlook, TokenRatio)
    req = decoding(rooms, request(1, p=4, m=9), 1)
    planned(rooms)
    assert rooms.outlook.ratio < 0.7
    rooms.queues.remove(req)
    planned(rooms)
    assert rooms.outlook.ratio == 0.7
