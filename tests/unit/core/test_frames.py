import pytest

from forebay.core.frames import Frame, Frames
from forebay.errors import InvariantError
from tests.unit.core.parts import request


def test_steps_are_numbered_from_one_and_done_in_order() -> None:
    frames = Frames(2)
    assert frames.next_seq == 1
    frames.push(Frame(frames.next_seq))
    assert not frames.is_full
    frames.push(Frame(frames.next_seq))
    assert frames.is_full
    with pytest.raises(InvariantError, match="step 2 is reported done, but 1 is the oldest"):
        frames.pop(2)
    assert frames.pop(1).seq == 1
    assert (len(frames), frames.next_seq) == (1, 3)


def test_a_step_that_was_never_planned_cannot_be_done() -> None:
    with pytest.raises(InvariantError, match="but none is the oldest"):
        Frames(1).pop(1)


def test_the_newest_step_that_computes_a_sequence_is_known() -> None:
    frames = Frames(3)
    seq, other = request(0).sequences[0], request(1).sequences[0]
    assert frames.last_with(seq) is None
    frames.push(Frame(1, computing={seq}))
    frames.push(Frame(2, computing={seq, other}))
    frames.push(Frame(3, computing={other}))
    assert (frames.last_with(seq), frames.last_with(other)) == (2, 3)
