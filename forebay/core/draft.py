"""The step under construction: what was promised so far, with undo."""

from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

from forebay.core.effects import Clone, Copy, JoinKind, Leave, Load, Preempted
from forebay.core.limits import Limits
from forebay.core.request import Request, Sequence
from forebay.units import BlockId, Nanos


@dataclass(slots=True)
class StepDraft:
    """Tokens per sequence, in planning order, and the parts of the step that go with them."""

    now: Nanos
    budget: int
    """Tokens that may still be planned."""
    planned: dict[Sequence, int] = field(default_factory=dict)
    grown: dict[Sequence, list[BlockId]] = field(default_factory=dict)
    admitted: list[tuple[Request, JoinKind]] = field(default_factory=list)
    left: list[Leave] = field(default_factory=list)
    copies: list[Copy] = field(default_factory=list)
    preempted: list[Preempted] = field(default_factory=list)
    ignored: list[Request] = field(default_factory=list)
    """Given up by a loop that judges at admission."""
    loads: list[Load] = field(default_factory=list)
    under_pressure: bool = False
    """Somebody found no block, whether or not anybody yielded for it."""
    throttled: bool = False
    """The driver asked to hold prefills back in this step."""

    @classmethod
    def start(cls, limits: Limits, now: Nanos, *, throttled: bool = False) -> "StepDraft":
        """An empty step with the full budget."""
        return cls(now=now, budget=limits.max_num_batched_tokens, throttled=throttled)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to tell the executor."""
        parts = (self.planned, self.admitted, self.copies, self.preempted, self.loads)
        return not any(parts)

    def add(self, seq: Sequence, num_tokens: int) -> None:
        """Promises `num_tokens` tokens to a sequence."""
        self.planned[seq] = num_tokens
        self.budget -= num_tokens

    def add_growth(self, seq: Sequence, blocks: Seq[BlockId], clone: Clone | None) -> None:
        """Notes what a sequence's table got, for the executor."""
        if blocks:
            self.grown.setdefault(seq, []).extend(blocks)
        if clone is not None:
            self.copies.append(clone)

    def take_back(self, seq: Sequence) -> None:
        """A sequence waits a step after all; its tokens go back to the budget.

        Only for those whose table did not grow for it.
        """
        self.budget += self.planned.pop(seq)

    def undo(self, request: Request) -> None:
        """A victim leaves no trace: its tokens and budget come back.

        Its clones stay in the list of copies: their target is freed with the table, and whoever
        gets it next writes after them.
        """
        for seq in request.live:
            self.budget += self.planned.pop(seq, 0)
            self.grown.pop(seq, None)
