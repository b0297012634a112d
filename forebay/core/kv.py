"""Block tables of requests: what is missing, take it, give it back. The sole door to the pool.

All known tokens of a request get their blocks when it is admitted, so a prefill in progress never
lacks one and needs no reservation; only the growth of decoding can fall short.
"""

from collections.abc import Sequence as Seq
from dataclasses import dataclass

from forebay.core.blocks import BlockPool, Hold
from forebay.core.duplicates import build_index
from forebay.core.effects import Clone, SwapIn, SwapOut
from forebay.core.events import FinishReason
from forebay.core.fences import Fences
from forebay.core.limits import Fencing, Limits
from forebay.core.policies import Granting, HostLeak, SwapSpan, UndoneBlocks
from forebay.core.request import Request, Sequence
from forebay.core.swap import HostPool, HostRun
from forebay.units import BlockId, StepSeq


@dataclass(slots=True, frozen=True)
class Probe:
    """What an admission would take: per live sequence its hits, and the blocks it costs.

    `cost`: free blocks that would be used up, ownerless hits included.
    """

    hits: list[list[BlockId]]
    cost: int


class KvSpace:
    """Device tables, host runs, prefix index and fences of all requests."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.index = build_index(limits.rules)
        self.pool = BlockPool(limits.num_blocks, self.index)
        self.host = HostPool(limits.num_host_blocks)
        self.fences = Fences(self.pool)

    @property
    def block_size(self) -> int:
        """Tokens a block."""
        return self._limits.block_size

    # -- running: growth ---------------------------------------------------------------

    def missing(self, request: Request, seq: Sequence, num_tokens: int) -> int:
        """Blocks that computing `num_tokens` more tokens needs beyond the sequence's table."""
        upto = self._limits.blocks_for(seq.computed + num_tokens)
        count = max(0, upto - len(seq.table.blocks))
        shared = self._shared_block(request, seq)
        if shared is not None and self.pool.num_holds(shared) > 1:
            count += 1
        return count

    def grow(
        self, request: Request, seq: Sequence, num_tokens: int
    ) -> tuple[list[BlockId], Clone | None]:
        """Gives a sequence its missing blocks; a shared block it is to write into is replaced."""
        table = seq.table
        clone = None
        shared = self._shared_block(request, seq)
        if shared is not None and self.pool.num_holds(shared) > 1:
            at = seq.computed // self._limits.block_size
            clone = Clone(seq.id, at, *self.pool.replace(table, at))
        upto = self._limits.blocks_for(seq.computed + num_tokens)
        return self.pool.take(table, max(0, upto - len(table.blocks))), clone

    def _shared_block(self, request: Request, seq: Sequence) -> BlockId | None:
        """The partial block that the next token is written into, if others may share it.

        While a forked group is replayed, the leading sequence writes the blocks that its branches
        wait for, in place. A published block is only ever written again with what it contains.
        """
        at, offset = divmod(seq.computed, self._limits.block_size)
        if offset == 0 or at >= len(seq.table.blocks) or at < seq.published:
            return None
        if seq.computed < request.shared_tokens:
            return None
        return seq.table.blocks[at]

    def fork(self, parent: Sequence, children: Seq[Sequence]) -> None:
        """Children share all blocks of the parent."""
        for child in children:
            self.pool.share(child.table, parent.table.blocks)

    # -- admission ---------------------------------------------------------------------

    def probe(self, request: Request) -> Probe:
        """What admitting a queued request would hit and cost. Changes nothing.

        Hits cover at most all known tokens but one, since the last must be computed to sample.
        In a group, branches share the full prompt blocks of the leading sequence.
        """
        size = self._limits.block_size
        sequences = request.live
        shared = self._shared_prompt_blocks(request)
        hits = []
        cost = 0
        for at, seq in enumerate(sequences):
            found: list[BlockId] = []
            if self._limits.prefix_caching:
                found = self.index.probe(seq.hashes, (seq.known - 1) // size)
            if at > 0:
                found = found[shared:]
            needed = self._limits.blocks_for(seq.known) - (shared if at > 0 else 0)
            cost += needed - len(found)
            hits.append(found)
        revived = {block for found in hits for block in found if self.pool.is_free(block)}
        return Probe(hits, cost + len(revived))

    def admit(self, request: Request, probe: Probe) -> None:
        """Gives an admitted request blocks for all its known tokens, hits first; by-chunk
        granting stops after the hits.

        Progress starts at the hits. Branches of a forked group start behind the shared blocks.
        """
        sequences = request.live
        shared = self._shared_prompt_blocks(request)
        hits = [Hold() for _ in sequences]  # held first: filling a table may evict cached blocks
        for hold, found in zip(hits, probe.hits, strict=True):
            self.pool.share(hold, found)
        for seq, hold in zip(sequences, hits, strict=True):
            seq.table = Hold()
            if seq is not sequences[0]:
                self.pool.share(seq.table, sequences[0].table.blocks[:shared])
            self.pool.share(seq.table, hold.blocks)
            self._fill(seq)
            head = 0 if seq is sequences[0] else shared
            seq.published = head + len(hold.blocks)
            seq.computed = seq.published * self._limits.block_size
        for hold in hits:
            self.pool.drop(hold)
        request.shared_tokens = shared * self._limits.block_size

    def _fill(self, seq: Sequence) -> None:
        if self._limits.rules.granting is Granting.ALL_KNOWN:
            self.extend(seq, seq.known)

    def extend(self, seq: Sequence, num_tokens: int) -> None:
        """Gives a sequence's table blocks for `num_tokens` tokens from its start."""
        wanted = self._limits.blocks_for(num_tokens)
        self.pool.take(seq.table, max(0, wanted - len(seq.table.blocks)))

    def _shared_prompt_blocks(self, request: Request) -> int:
        if not request.forked or len(request.live) == 1:
            return 0
        return request.spec.num_prompt // self._limits.block_size

    # -- release -----------------------------------------------------------------------

    def num_freed_by(self, requests: Seq[Request]) -> int:
        """Blocks that only these requests hold between them: sharers free nothing one by one.

        They become free now, or past a fence.
        """
        held: dict[BlockId, int] = {}
        for request in requests:
            for seq in request.live:
                for block in seq.table.blocks:
                    held[block] = held.get(block, 0) + 1
        return sum(1 for block, count in held.items() if self.pool.num_holds(block) == count)

    def release(self, seq: Sequence, last_step: StepSeq | None) -> None:
        """The table lets go. `last_step`: the newest step in flight that may write its blocks."""
        if last_step is not None and self._limits.fencing is Fencing.IN_FLIGHT:
            self.fences.add(self.pool.hand_over(seq.table), last_step)
        else:
            self.pool.drop(seq.table)

    def publish(self, seq: Sequence, computed: int) -> None:
        """Makes the sequence's hashed blocks findable, as far as `computed` tokens fill them.

        A block may be published in the step that fills it: a later request of the same step may
        hit it, since the executor writes a layer's keys and values before any row attends.
        """
        if not self._limits.prefix_caching:
            return
        filled = min(len(seq.hashes), computed // self._limits.block_size)
        for at in range(seq.published, filled):
            self.index.publish(seq.table.blocks[at], seq.hashes[at])
        seq.published = max(seq.published, filled)

    def withdraw(self, seq: Sequence) -> None:
        """Blocks that a step in the making was to fill, and now will not, cannot be found."""
        if self._limits.rules.undone_blocks is UndoneBlocks.WITHDRAWN:
            for at in range(seq.computed // self._limits.block_size, seq.published):
                self.index.forget(seq.table.blocks[at])

    # -- swap --------------------------------------------------------------------------

    def computed_blocks(self, request: Request) -> list[BlockId]:
        """The distinct device blocks that hold computed tokens of the request, or its tables."""
        blocks: dict[BlockId, None] = {}
        for seq in request.live:
            used = self._num_swapped(seq)
            blocks.update(dict.fromkeys(seq.table.blocks[:used]))
        return list(blocks)

    def _num_swapped(self, seq: Sequence) -> int:
        """Leading blocks of the table that a swap moves."""
        if self._limits.rules.swap_span is SwapSpan.TABLE:
            return len(seq.table.blocks)
        return self._limits.blocks_for(seq.computed)

    def swap_out(
        self, request: Request, last_step: StepSeq | None
    ) -> tuple[HostRun, list[SwapOut]]:
        """Moves a request's computed blocks to host slots and lets go of its tables."""
        blocks = self.computed_blocks(request)
        slots = self.host.take(len(blocks))
        slot_of = dict(zip(blocks, slots, strict=True))
        tables = {}
        for seq in request.live:
            used = self._num_swapped(seq)
            tables[seq.id] = tuple(slot_of[block] for block in seq.table.blocks[:used])
        copies = [SwapOut(block, slot) for block, slot in slot_of.items()]
        for seq in request.live:
            self.release(seq, last_step)
        return HostRun(tables, tuple(slots)), copies

    def swap_in_cost(self, request: Request, run: HostRun) -> int:
        """Device blocks that bringing a swapped request back takes, its next token included.

        Branches may each have to copy the partial block that they share before they write it.
        """
        live = request.live
        distinct = {slot for seq in live for slot in run.tables[seq.id]}
        growth = sum(
            max(0, self._limits.blocks_for(seq.computed + seq.to_compute) - len(run.tables[seq.id]))
            for seq in live
        )
        partials = [
            run.tables[seq.id][-1] for seq in live if seq.computed % self._limits.block_size
        ]
        clones = len(partials) - len(set(partials))
        return len(distinct) + growth + clones

    def swap_in(self, request: Request, run: HostRun) -> list[SwapIn]:
        """Gives a swapped request its blocks back; sharing within the group is restored."""
        block_of: dict[int, BlockId] = {}
        copies = []
        for seq in request.live:
            seq.table = Hold()
            for slot in run.tables[seq.id]:
                if slot in block_of:
                    self.pool.share(seq.table, [block_of[slot]])
                    continue
                (block,) = self.pool.take(seq.table, 1)
                block_of[slot] = block
                copies.append(SwapIn(slot, block))
            seq.published = 0
            self._fill(seq)
        self.host.give_back(run)
        return copies

    def drop_swapped(self, run: HostRun, reason: FinishReason) -> None:
        """A swapped request ended: its host slots are free, but for a quirk of vLLM V0."""
        leaks = self._limits.rules.host_leak is HostLeak.WHEN_IGNORED
        if leaks and reason is FinishReason.IGNORED:
            self.host.leak(run)
        else:
            self.host.give_back(run)
