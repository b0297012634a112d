import itertools

import pytest

from forebay.core.events import FinishReason
from forebay.core.lifecycle import (
    ALLOWED,
    Finished,
    Loaded,
    Loading,
    Move,
    Phase,
    Queued,
    QueuedWhy,
    Running,
    State,
    Swapped,
    advance,
    table,
)
from forebay.core.queues import Queues
from forebay.core.swap import HostRun
from forebay.errors import InvariantError
from forebay.units import LoadId
from tests.unit.core.parts import request

STATES: dict[Phase, State] = {
    Phase.QUEUED: Queued(QueuedWhy.PREEMPTED),
    Phase.RUNNING: Running(),
    Phase.SWAPPED: Swapped(HostRun({}, ())),
    Phase.LOADING: Loading(LoadId(3)),
    Phase.LOADED: Loaded(LoadId(3), num_hit_tokens=0),
    Phase.FINISHED: Finished(FinishReason.STOP),
}
WANTED = {
    ("Queued", "Start", "Running"),
    ("Running", "Yielded(RECOMPUTE)", "Queued"),
    ("Running", "Yielded(SWAP)", "Swapped"),
    ("Swapped", "SwapIn", "Running"),
    ("Queued", "OrderLoad", "Loading"),
    ("Loading", "LoadDone", "Loaded"),
    ("Loading", "LoadFailed", "Queued"),
    ("Loaded", "Start", "Running"),
    ("Queued", "End", "Finished"),
    ("Loading", "End", "Finished"),
    ("Loaded", "End", "Finished"),
    ("Running", "End", "Finished"),
    ("Swapped", "End", "Finished"),
}


@pytest.mark.parametrize(
    ("before", "move", "after"), list(itertools.product(Phase, Move, Phase)), ids=str
)
def test_every_state_times_every_move(before: Phase, move: Move, after: Phase) -> None:
    queues, req = Queues(), request()
    req.state = STATES[before]
    queues.insert(req)
    if (before.value, move.value, after.value) in WANTED:
        advance(req, move, STATES[after], queues)
        assert req.state == STATES[after]
        assert (req in queues.running) == (after is Phase.RUNNING)
        assert (req in queues.waiting) == (after in (Phase.QUEUED, Phase.SWAPPED))
        assert (req in queues.parked) == (after in (Phase.LOADING, Phase.LOADED))
        assert queues.num_swapped == (after is Phase.SWAPPED)
        return
    with pytest.raises(InvariantError, match="not in the transition table"):
        advance(req, move, STATES[after], queues)
    assert req.state is STATES[before]
    assert (req in queues.running) == (before is Phase.RUNNING)


def test_the_table_prints_one_line_a_transition() -> None:
    lines = table().splitlines()
    assert len(lines) == len(ALLOWED) == len(WANTED)
    assert {tuple(line.replace("->", "+").replace(" ", "").split("+")) for line in lines} == WANTED
