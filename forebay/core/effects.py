"""What the machine asks for. Drivers perform effects; the machine never looks at the world.

A step is a *delta over a persistent batch*. The executor keeps, for each row (sequence) in the
batch, its block table and how many tokens are computed. Applied in this order:

1. `left`    rows leave the batch; `ended` requests' token buffers may be dropped
2. `joined`  rows enter the batch with their table
3. `grown`   blocks are appended to tables (or one shared block is replaced: see `Clone`)
4. `copies`  whole blocks are copied, in list order, before anything is computed
5. compute   a row in `chunks` computes `num_tokens` tokens; a row in `idle` computes nothing;
             *every other row of the batch computes exactly one token and samples the next*
6. `forks`   children get their first token from the parent's logits and join the batch

Keys and values of all rows of a layer are written before any row of it attends, since a request
may hit prefix blocks that another one fills in the same step.

`loads` are not part of this order: they run beside it, from when the step is handed over until
`LoadDone` or `LoadFailed` is reported, and write only blocks that no step in flight touches.
"""

from dataclasses import dataclass, field
from enum import Enum

from forebay.core.events import FinishReason
from forebay.units import BlockId, HostSlot, LoadId, Nanos, RequestId, SeqId, StepSeq


class JoinKind(Enum):
    """How a row comes into the batch."""

    NEW = "new"
    RESUMED = "resumed"
    """Preempted by recompute before; starts again at `num_computed`."""
    SWAPPED_IN = "swapped_in"


class LeaveKind(Enum):
    """Why a row leaves the batch."""

    FINISHED = "finished"
    RECOMPUTE = "recompute"
    SWAP = "swap"


class Yield(Enum):
    """How a victim gives its blocks back."""

    RECOMPUTE = "recompute"
    SWAP = "swap"


class Cause(Enum):
    """Why somebody had to yield."""

    BLOCKS = "blocks"
    """A running request needed a block and none was free."""
    URGENT = "urgent"
    """A strictly more urgent request took the blocks or the place in the batch."""
    ARTIFICIAL = "artificial"
    """The artificial-pressure option refused an allocation."""


@dataclass(slots=True, frozen=True)
class Join:
    """A row enters the batch: `num_known` token ids must be in the executor's buffer by now."""

    seq_id: SeqId
    kind: JoinKind
    num_computed: int
    num_known: int
    blocks: tuple[BlockId, ...]


@dataclass(slots=True, frozen=True)
class Leave:
    """A row leaves the batch. Its token buffer stays, unless its request is in `Step.ended`."""

    seq_id: SeqId
    kind: LeaveKind


@dataclass(slots=True, frozen=True)
class Grow:
    """Blocks are appended to a row's table."""

    seq_id: SeqId
    blocks: tuple[BlockId, ...]


@dataclass(slots=True, frozen=True)
class Chunk:
    """A row computes tokens `start <= i < start + num_tokens`; `samples` if it then samples."""

    seq_id: SeqId
    start: int
    num_tokens: int
    samples: bool


@dataclass(slots=True, frozen=True)
class Fork:
    """The parent finished its prompt: `children` sample from its logits and share its table."""

    parent: SeqId
    children: tuple[SeqId, ...]


@dataclass(slots=True, frozen=True)
class SwapOut:
    """Copy a device block to a host slot."""

    block: BlockId
    slot: HostSlot


@dataclass(slots=True, frozen=True)
class SwapIn:
    """Copy a host slot to a device block."""

    slot: HostSlot
    block: BlockId


@dataclass(slots=True, frozen=True)
class Clone:
    """Copy-on-write: `seq_id` is about to write into a shared block and gets its own copy.

    Entry `index` of the row's table changes from `src` to `dst`, if the row is in the batch and
    did not just join with the new table; a row that has left since only leaves the copy to do.
    """

    seq_id: SeqId
    index: int
    src: BlockId
    dst: BlockId


Copy = SwapOut | SwapIn | Clone


@dataclass(slots=True, frozen=True, kw_only=True)
class Load:
    """Bring `num_tokens` tokens of KV, from position `start` of a prompt on, into `blocks`.

    `start` is the first position of `blocks[0]`; the last block may be filled in part. The row
    joins the batch later, with a table that contains the blocks.
    """

    load_id: LoadId
    seq_id: SeqId
    start: int
    num_tokens: int
    blocks: tuple[BlockId, ...]


@dataclass(slots=True, frozen=True)
class Preempted:
    """The executor and the metrics are told who yielded, how, why and how much it freed."""

    request_id: RequestId
    how: Yield
    cause: Cause
    num_blocks: int
    num_tokens: int
    """Computed tokens that were dropped (recompute) or moved to host (swap)."""


@dataclass(slots=True, kw_only=True)
class Step:
    """One planned step; see the module docstring for the order of its parts.

    `num_tokens`: tokens computed by all rows. `num_rows`: rows that compute at least one token.
    A step may compute nothing and only bring leaves, copies or loads.
    """

    seq: StepSeq
    num_tokens: int = 0
    num_rows: int = 0
    left: list[Leave] = field(default_factory=list)
    ended: list[RequestId] = field(default_factory=list)
    joined: list[Join] = field(default_factory=list)
    grown: list[Grow] = field(default_factory=list)
    copies: list[Copy] = field(default_factory=list)
    chunks: list[Chunk] = field(default_factory=list)
    idle: list[SeqId] = field(default_factory=list)
    forks: list[Fork] = field(default_factory=list)
    preempted: list[Preempted] = field(default_factory=list)
    loads: list[Load] = field(default_factory=list)


@dataclass(slots=True, frozen=True, kw_only=True)
class RequestReport:
    """What one request went through, told when its last sequence ends."""

    num_preemptions: int
    num_swaps: int
    recomputed_tokens: int
    cached_tokens: int
    """Prompt tokens found in the prefix cache at the first admission."""
    swapped_blocks: int
    queue_ns: Nanos | None
    """From arrival to the first admission; None if it never started."""
    total_ns: Nanos


@dataclass(slots=True, frozen=True)
class Ended:
    """A sequence ended. `num_output` counts its valid output tokens; later ones are dropped."""

    seq_id: SeqId
    reason: FinishReason
    num_output: int
    report: RequestReport | None
    """Present on the last sequence of its request."""


class RefuseReason(Enum):
    """Why a request was not taken."""

    TOO_LONG = "too_long"
    NEVER_FITS = "never_fits"
    BAD_SHAPE = "bad_shape"


@dataclass(slots=True, frozen=True)
class Refuse:
    """A request that was never queued, with the arithmetic in `message`."""

    request_id: RequestId
    reason: RefuseReason
    message: str


@dataclass(slots=True, frozen=True)
class Capped:
    """A request was taken, but its output was capped: the pool can never hold all it asked for."""

    request_id: RequestId
    max_tokens: int
    message: str


Effect = Ended | Refuse | Capped
"""Effects of `handle` and of deadlines; the step itself is what `plan` returns."""
