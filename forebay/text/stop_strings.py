"""Stop strings in a stream of text: found however the text is cut, and never shown too early.

The first stop to be complete wins, which is where a model writing character by character would
have been stopped; of several complete at one character, the longest. So the result depends on the
text alone, not on how tokens divide it. A text that may be the beginning of a stop is held back.

All stops are searched at once by an automaton over their prefixes (Aho and Corasick, CACM 1975),
one step a character: cost does not grow with the length of the output or the number of stops.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from forebay.errors import BadRequest, InvariantError


@dataclass(slots=True, kw_only=True)
class _State:
    """A prefix of some stop that the text now ends with; the longest such."""

    depth: int  # length of the prefix
    after: dict[str, "_State"] = field(default_factory=dict)
    shorter: "_State | None" = None  # the next shorter prefix the text ends with; None at the root
    stop: str | None = None  # the longest stop that is complete here
    num_held: int = 0  # characters at the end of the text that may yet become part of a stop


@dataclass(frozen=True, slots=True, kw_only=True)
class StopDelta:
    """What one piece of text led to."""

    text: str  # certain now, after what was given before
    stop: str | None = None  # the stop that ended the text


class StopMatcher:
    """Watches the text of one sequence for any of `stops`.

    `include_stop` leaves the stop at the end of the text. Raises BadRequest for a stop that is
    empty or no string.
    """

    def __init__(self, stops: Sequence[str], *, include_stop: bool = False) -> None:
        self._root = _automaton(_checked(stops))
        self._state = self._root
        self._include = include_stop
        self._held = ""
        self._stop: str | None = None
        self._num_chars = 0

    @property
    def stop(self) -> str | None:
        """The stop that ended the text, once there is one."""
        return self._stop

    @property
    def num_chars(self) -> int:
        """Characters given out so far; after a stop, the length of the whole text."""
        return self._num_chars

    def push(self, text: str, *, may_stop: bool = True) -> StopDelta:
        """Take the next piece of text.

        With `may_stop` false (fewer than `min_tokens` so far) no stop is recognised that ends in
        this piece, but one that ends in a later piece may begin in it. Text after a stop is
        dropped, and so are later pieces.
        """
        if self._stop is not None:
            return StopDelta(text="", stop=self._stop)
        if not self._root.after:
            return self._give(text)
        pending = self._held + text
        num_held = len(self._held)
        state = self._state
        for place, character in enumerate(text, start=num_held + 1):
            state = _step(state, character)
            if state.stop is not None and may_stop:
                self._stop = state.stop
                end = place if self._include else place - len(state.stop)
                self._held = ""
                return self._give(pending[:end])
        self._state = state
        certain = len(pending) - state.num_held
        self._held = pending[certain:]
        return self._give(pending[:certain])

    def finish(self) -> str:
        """What was held back, now that nothing follows; nothing after a stop."""
        held, self._held = self._held, ""
        self._state = self._root
        return self._give(held).text

    def _give(self, text: str) -> StopDelta:
        self._num_chars += len(text)
        return StopDelta(text=text, stop=self._stop)


def _step(state: _State, character: str) -> _State:
    """The longest prefix that the text ends with after one more character."""
    while True:
        found = state.after.get(character)
        if found is not None:
            return found
        if state.shorter is None:
            return state
        state = state.shorter


def _checked(stops: Sequence[str]) -> tuple[str, ...]:
    if isinstance(stops, str):
        raise BadRequest("stop strings come as a list; write [stop] for a single one")
    for stop in stops:
        if not isinstance(stop, str) or not stop:
            raise BadRequest(f"a stop string should be a string that is not empty, not {stop!r}")
    return tuple(stops)


@lru_cache(maxsize=256)
def _automaton(stops: tuple[str, ...]) -> _State:
    root = _State(depth=0)
    for stop in stops:
        state = root
        for character in stop:
            state = state.after.setdefault(character, _State(depth=state.depth + 1))
        state.stop = stop
    # Breadth first: the shorter prefixes of a state are complete before the state itself is met.
    queue = deque([root])
    while queue:
        state = queue.popleft()
        for character, child in state.after.items():
            child.shorter = root if state.shorter is None else _step(state.shorter, character)
            _inherit(child)
            queue.append(child)
    return root


def _inherit(state: _State) -> None:
    """Take over from the next shorter prefix what the state has not of its own."""
    shorter = state.shorter
    if shorter is None:
        raise InvariantError("only the root of a stop automaton has no shorter prefix")
    state.stop = state.stop or shorter.stop
    # A whole stop that nothing continues holds nothing back: only its shorter ends may grow on.
    state.num_held = state.depth if state.after else shorter.num_held
