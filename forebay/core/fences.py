"""Blocks that a step in flight may still write: a holder that lets go at that step's end."""

from collections import Counter, deque

from forebay.core.blocks import BlockPool, Hold
from forebay.units import StepSeq


class Fences:
    """Holds on behalf of steps in flight, oldest first."""

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self._queue: deque[tuple[StepSeq, Hold]] = deque()

    @property
    def holds(self) -> list[Hold]:
        """The live holds, for the audit."""
        return [hold for _, hold in self._queue]

    @property
    def num_returning(self) -> int:
        """Blocks that become free by themselves: held by fences and nobody else."""
        held = Counter(block for _, hold in self._queue for block in hold.blocks)
        return sum(1 for block, count in held.items() if self._pool.num_holds(block) == count)

    def add(self, hold: Hold, last_step: StepSeq) -> None:
        """Keeps a table that was let go until `last_step` is done."""
        if hold.blocks:
            self._queue.append((last_step, hold))

    def drop_until(self, done: StepSeq) -> None:
        """Lets go of what only steps up to `done` could write."""
        kept: deque[tuple[StepSeq, Hold]] = deque()
        for last_step, hold in self._queue:
            if last_step <= done:
                self._pool.drop(hold)
            else:
                kept.append((last_step, hold))
        self._queue = kept
