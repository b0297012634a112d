"""A request as a group of sequences, with the counters from which everything is derived.

For each sequence, in tokens::

    |--------- known ---------|-- pending --|
    |------ computed ------|                      0 <= computed <= known + pending

`known`: ids that the host has. `pending`: sampled by steps in flight. `computed`: positions whose
keys and values are written, or promised by steps in flight. There is no prefill or decode state:
a sequence with `computed < known + pending` has something to compute, that is all.
"""

from dataclasses import dataclass, field

from forebay.core.blocks import Hold
from forebay.core.events import Arrive, FinishReason
from forebay.core.lifecycle import Queued, QueuedWhy, State
from forebay.units import Nanos, RequestId, SeqId, seq_id


@dataclass(slots=True, eq=False)
class Sequence:
    """One row of the device batch while it runs; its tokens live in the executor."""

    id: SeqId
    known: int
    limit: int
    """It ends when `known` reaches this many tokens."""
    hashes: list[bytes]
    """Chained hashes of its full blocks of known tokens, as far as reported."""
    table: Hold = field(default_factory=Hold)
    computed: int = 0
    pending: int = 0
    published: int = 0
    """Leading blocks of the table that are published or were hits."""
    high_water: int = 0
    """The most that was ever computed: below it, computing is recomputing."""
    finish: FinishReason | None = None

    @property
    def total(self) -> int:
        """Tokens that exist once the steps in flight are done."""
        return self.known + self.pending

    @property
    def to_compute(self) -> int:
        """Tokens it could compute now; 0 once its last token is sampled."""
        return 0 if self.total >= self.limit else self.total - self.computed


@dataclass(slots=True, eq=False)
class Request:
    """A prompt and its one to eight continuations; the unit of admission and of yielding."""

    spec: Arrive
    limit: int
    """Most tokens of each sequence: prompt plus output, capped by length and pool."""
    limit_reason: FinishReason
    order: tuple[int, int, int]
    """The one total order of admission and (reversed) of yielding: smaller goes first."""
    sequences: list[Sequence]
    state: State = field(default_factory=lambda: Queued(QueuedWhy.NEW))
    forked: bool = False
    shared_tokens: int = 0
    """While a forked group is recomputed: what its branches wait for the first one to compute."""
    prefill_until: int = 0
    """Tokens known when it was last admitted: computing below them is prefill."""
    num_preemptions: int = 0
    num_swaps: int = 0
    recomputed_tokens: int = 0
    cached_tokens: int = 0
    swapped_blocks: int = 0
    admitted_once: bool = False
    load_failed: bool = False
    """It computes its whole prompt itself from now on."""
    queue_ns: Nanos | None = None
    """From arrival to the first admission."""

    @property
    def id(self) -> RequestId:
        """The engine's id of the request."""
        return self.spec.request_id

    @property
    def live(self) -> list[Sequence]:
        """Sequences that have not ended, the leading one first."""
        if len(self.sequences) == 1:
            return self.sequences if self.sequences[0].finish is None else []
        return [seq for seq in self.sequences if seq.finish is None]

    @property
    def num_seats(self) -> int:
        """Places of the batch it takes: all its branches, from admission on."""
        return len(self.live) if self.forked else self.spec.num_branches

    @property
    def is_decoding(self) -> bool:
        """Whether each live sequence has at most its newest token to compute."""
        return all(seq.to_compute <= 1 for seq in self.live)

    @property
    def is_prefilling(self) -> bool:
        """Whether tokens known at its last admission are still to be computed."""
        return any(seq.computed < self.prefill_until for seq in self.live)


def new_request(spec: Arrive, limit: int, limit_reason: FinishReason, priority: int) -> Request:
    """A queued request that has not started. `priority` is 0 for all under FCFS."""
    first = Sequence(
        id=seq_id(spec.request_id, 0),
        known=spec.num_prompt,
        limit=limit,
        hashes=list(spec.block_hashes),
    )
    return Request(
        spec=spec,
        limit=limit,
        limit_reason=limit_reason,
        order=(priority, spec.arrival_ns, spec.request_id),
        sequences=[first],
    )


def every_sequence(request: Request) -> list[Sequence]:
    """All live sequences; those that were asked for and not forked yet are created first."""
    if request.spec.num_branches > 1 and not request.forked:
        add_branches(request)
    return list(request.live)


def add_branches(request: Request) -> list[Sequence]:
    """Creates the other branches from the first; they share its counters, not yet its blocks."""
    first = request.sequences[0]
    assert not request.forked
    for branch in range(1, request.spec.num_branches):
        request.sequences.append(
            Sequence(
                id=seq_id(request.id, branch),
                known=first.known,
                limit=first.limit,
                hashes=list(first.hashes),
                computed=first.computed,
                pending=first.pending,
                published=first.published,
                high_water=first.high_water,
            )
        )
    request.forked = True
    return request.sequences[1:]
