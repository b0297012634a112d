"""Request states, the transition table, and the only writer of a request's state.

Run `python -m forebay.core.lifecycle` to print the table; the docs and the tests use the same.
"""

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from forebay.core.events import FinishReason
from forebay.core.swap import HostRun
from forebay.errors import InvariantError
from forebay.units import LoadId

if TYPE_CHECKING:
    from forebay.core.queues import Queues
    from forebay.core.request import Request


class Phase(Enum):
    """Which kind of state a request is in."""

    QUEUED = "Queued"
    RUNNING = "Running"
    SWAPPED = "Swapped"
    LOADING = "Loading"
    LOADED = "Loaded"
    FINISHED = "Finished"


class Move(Enum):
    """What moves a request from state to state."""

    START = "Start"
    YIELD_RECOMPUTE = "Yielded(RECOMPUTE)"
    YIELD_SWAP = "Yielded(SWAP)"
    SWAP_IN = "SwapIn"
    ORDER_LOAD = "OrderLoad"
    LOAD_DONE = "LoadDone"
    LOAD_FAILED = "LoadFailed"
    END = "End"


class QueuedWhy(Enum):
    """Why a queued request waits."""

    NEW = "new"
    PREEMPTED = "preempted"
    LOAD_FAILED = "load_failed"


@dataclass(slots=True, frozen=True)
class Queued:
    """Holds nothing and waits for admission."""

    why: QueuedWhy
    phase = Phase.QUEUED


@dataclass(slots=True, frozen=True)
class Running:
    """Holds device blocks and a place in the batch."""

    phase = Phase.RUNNING


@dataclass(slots=True, frozen=True)
class Swapped:
    """Holds host slots only; its progress is whole."""

    host: HostRun
    phase = Phase.SWAPPED


@dataclass(slots=True, frozen=True)
class Loading:
    """Holds device blocks that an external store is filling; takes no place in the batch."""

    load_id: LoadId
    phase = Phase.LOADING


@dataclass(slots=True, frozen=True)
class Loaded:
    """Its load is complete; holds device blocks and waits for a place in the batch."""

    load_id: LoadId
    num_hit_tokens: int
    """Of its computed tokens, those found in the prefix cache before the load."""
    phase = Phase.LOADED


@dataclass(slots=True, frozen=True)
class Finished:
    """Holds nothing, for ever."""

    reason: FinishReason
    phase = Phase.FINISHED


State = Queued | Running | Swapped | Loading | Loaded | Finished

ALLOWED: dict[tuple[Phase, Move], Phase] = {
    (Phase.QUEUED, Move.START): Phase.RUNNING,
    (Phase.RUNNING, Move.YIELD_RECOMPUTE): Phase.QUEUED,
    (Phase.RUNNING, Move.YIELD_SWAP): Phase.SWAPPED,
    (Phase.SWAPPED, Move.SWAP_IN): Phase.RUNNING,
    (Phase.QUEUED, Move.ORDER_LOAD): Phase.LOADING,
    (Phase.LOADING, Move.LOAD_DONE): Phase.LOADED,
    (Phase.LOADING, Move.LOAD_FAILED): Phase.QUEUED,
    (Phase.LOADED, Move.START): Phase.RUNNING,
    (Phase.QUEUED, Move.END): Phase.FINISHED,
    (Phase.RUNNING, Move.END): Phase.FINISHED,
    (Phase.SWAPPED, Move.END): Phase.FINISHED,
    (Phase.LOADING, Move.END): Phase.FINISHED,
    (Phase.LOADED, Move.END): Phase.FINISHED,
}


def advance(request: "Request", move: Move, state: State, queues: "Queues") -> None:
    """Moves a request to `state`; its queue membership follows.

    Raises: InvariantError if the table does not allow it; nothing is changed then.
    """
    before = request.state.phase
    if ALLOWED.get((before, move)) is not state.phase:
        raise InvariantError(
            f"request {request.id}: {before.value} + {move.value} -> {state.phase.value} "
            "is not in the transition table"
        )
    queues.remove(request)
    request.state = state
    queues.insert(request)


def table() -> str:
    """The transition table as text, one line a transition."""
    rows = [f"{a.value:9} + {m.value:19} -> {b.value}" for (a, m), b in ALLOWED.items()]
    return "\n".join(rows)


if __name__ == "__main__":
    print(table())
