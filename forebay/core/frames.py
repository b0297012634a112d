"""Steps that were planned and are not done: who samples in them, who computes in them."""

from collections import deque
from dataclasses import dataclass, field

from forebay.core.request import Sequence
from forebay.errors import InvariantError
from forebay.units import StepSeq


@dataclass(slots=True, frozen=True)
class Frame:
    """One step in flight. `sampling` sequences each get one token from it."""

    seq: StepSeq
    sampling: list[Sequence] = field(default_factory=list)
    computing: set[Sequence] = field(default_factory=set)


class Frames:
    """Steps in flight, oldest first. They are done in order."""

    def __init__(self, depth: int) -> None:
        self._depth = depth
        self._queue: deque[Frame] = deque()
        self._last = StepSeq(0)

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def is_full(self) -> bool:
        """Whether as many steps are out as may be."""
        return len(self._queue) >= self._depth

    @property
    def next_seq(self) -> StepSeq:
        """The number of the next step."""
        return StepSeq(self._last + 1)

    def push(self, frame: Frame) -> None:
        """A step goes out."""
        self._queue.append(frame)
        self._last = frame.seq

    def pop(self, seq: StepSeq) -> Frame:
        """The oldest step is done. Raises InvariantError if it is not step `seq`."""
        if not self._queue or self._queue[0].seq != seq:
            due = self._queue[0].seq if self._queue else "none"
            raise InvariantError(f"step {seq} is reported done, but {due} is the oldest in flight")
        return self._queue.popleft()

    def last_with(self, seq: Sequence) -> StepSeq | None:
        """The newest step in flight that may write this sequence's blocks."""
        for frame in reversed(self._queue):
            if seq in frame.computing:
                return frame.seq
        return None
