"""The persistent batch: one row per sequence, kept as arrays from step to step.

A step changes few rows; the rest only count on, all at once. Rows are in no particular order: a
row that leaves is replaced by the last one.
"""

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from forebay.errors import InvariantError
from forebay.exec.token_buffers import TokenBuffer
from forebay.units import BlockId, SeqId, div_ceil

IntArray: TypeAlias = NDArray[np.int32]
BoolArray: TypeAlias = NDArray[np.bool_]

_FIRST_WIDTH = 16


class Batch:
    """Rows `0 <= row < num_rows`; arrays are as long as `max_num_seqs`.

    `block_tables` (max_num_seqs, width) int32: entry `i` of a row holds the block of its tokens
    from `i * block_size` on; entries from `num_blocks[row]` on are 0. The width grows as needed,
    so the array must be taken anew in each step.
    """

    def __init__(self, *, block_size: int, max_num_seqs: int, num_blocks: int) -> None:
        self._block_size = block_size
        self._max_num_seqs = max_num_seqs
        self._pool_blocks = num_blocks
        self._row_of: dict[SeqId, int] = {}
        self.buffers: list[TokenBuffer] = []
        self.block_tables: IntArray = np.zeros((max_num_seqs, _FIRST_WIDTH), np.int32)
        self.num_blocks: IntArray = np.zeros(max_num_seqs, np.int32)
        self.num_computed: IntArray = np.zeros(max_num_seqs, np.int32)
        self.num_known: IntArray = np.zeros(max_num_seqs, np.int32)
        self.last_token: IntArray = np.zeros(max_num_seqs, np.int32)
        self.is_special: BoolArray = np.zeros(max_num_seqs, np.bool_)
        """Rows whose sequence needs more than the likeliest raw logit."""
        self.is_active: BoolArray = np.zeros(max_num_seqs, np.bool_)
        """Rows that still compute: their sequence has not stopped."""
        self._active_rows: IntArray | None = None

    @property
    def num_rows(self) -> int:
        """Rows in the batch, stopped ones included."""
        return len(self.buffers)

    def __contains__(self, seq: SeqId) -> bool:
        return seq in self._row_of

    def row(self, seq: SeqId) -> int:
        """The row of a sequence. Raises `InvariantError` when it has none."""
        row = self._row_of.get(seq)
        if row is None:
            raise InvariantError(f"sequence {seq} is not in the batch")
        return row

    def table(self, seq: SeqId) -> tuple[BlockId, ...]:
        """The block table of a sequence."""
        row = self.row(seq)
        return tuple(map(BlockId, self.block_tables[row, : self.num_blocks[row]].tolist()))

    def active_rows(self) -> IntArray:
        """All rows that still compute, ascending; not to be written to."""
        if self._active_rows is None:
            self._active_rows = np.flatnonzero(self.is_active[: self.num_rows]).astype(np.int32)
        return self._active_rows

    def buffers_of(self, rows: IntArray) -> list[TokenBuffer]:
        """The buffers of some rows; a copy even when it is all of them."""
        if len(rows) == self.num_rows:
            return self.buffers.copy()
        return [self.buffers[row] for row in rows.tolist()]

    def join(self, buffer: TokenBuffer, num_computed: int, blocks: Sequence[BlockId]) -> int:
        """Gives a sequence a row, its table and its progress; returns the row."""
        seq = buffer.seq_id
        row = self.num_rows
        if seq in self._row_of:
            raise InvariantError(f"sequence {seq} joins the batch twice")
        if row == self._max_num_seqs:
            raise InvariantError(
                f"sequence {seq} joins a full batch of {self._max_num_seqs} sequences"
            )
        self._row_of[seq] = row
        self.buffers.append(buffer)
        self.num_blocks[row] = 0
        self.num_computed[row] = num_computed
        self.num_known[row] = len(buffer.tokens)
        self.last_token[row] = buffer.tokens[-1]
        self.is_special[row] = buffer.needs_more_than_argmax
        self.is_active[row] = not buffer.stopped
        self._active_rows = None
        self.grow(seq, blocks)
        return row

    def leave(self, seq: SeqId) -> None:
        """Takes a sequence's row away; the last row moves into its place."""
        row = self.row(seq)
        del self._row_of[seq]
        last = self.num_rows - 1
        self.block_tables[row, : self.num_blocks[row]] = 0
        if row != last:
            self._move(last, row)
        self.buffers.pop()
        self._active_rows = None

    def grow(self, seq: SeqId, blocks: Sequence[BlockId]) -> None:
        """Appends blocks to a sequence's table."""
        row = self.row(seq)
        if not blocks:
            return
        if min(blocks) < 0 or max(blocks) >= self._pool_blocks:
            raise InvariantError(
                f"sequence {seq} gets blocks {list(blocks)} of a pool of {self._pool_blocks}"
            )
        start = int(self.num_blocks[row])
        end = start + len(blocks)
        if end > self.block_tables.shape[1]:
            self._widen(end)
        self.block_tables[row, start:end] = blocks
        self.num_blocks[row] = end

    def replace(self, seq: SeqId, index: int, src: BlockId, dst: BlockId) -> None:
        """Changes entry `index` of a table from `src` to `dst`."""
        row = self.row(seq)
        if not 0 <= index < self.num_blocks[row] or self.block_tables[row, index] != src:
            raise InvariantError(
                f"entry {index} of sequence {seq} is to change from block {src}, which is not there"
            )
        self.block_tables[row, index] = dst

    def stop(self, seq: SeqId) -> None:
        """A sequence computes no more; its row stays until the scheduler takes it away."""
        self.is_active[self.row(seq)] = False
        self._active_rows = None

    def check_covered(self, rows: IntArray, num_tokens: IntArray) -> None:
        """Raises `InvariantError` unless the tables of `rows` hold that many tokens each."""
        short = self.num_blocks[rows] * self._block_size < num_tokens
        if short.any():
            at = int(np.flatnonzero(short)[0])
            row = int(rows[at])
            raise InvariantError(
                f"sequence {self.buffers[row].seq_id} has {self.num_blocks[row]} blocks and needs "
                f"{div_ceil(int(num_tokens[at]), self._block_size)}"
            )

    def slots(self, rows: IntArray, positions: IntArray) -> NDArray[np.int64]:
        """Where in the pool a token's keys and values go: `block * block_size + offset`."""
        blocks = self.block_tables[rows, positions // self._block_size].astype(np.int64)
        return blocks * self._block_size + positions % self._block_size

    def _move(self, source: int, target: int) -> None:
        buffer = self.buffers[source]
        self.buffers[target] = buffer
        self._row_of[buffer.seq_id] = target
        self.block_tables[target] = self.block_tables[source]
        self.block_tables[source] = 0
        for column in (self.num_blocks, self.num_computed, self.num_known, self.last_token):
            column[target] = column[source]
        self.is_special[target] = self.is_special[source]
        self.is_active[target] = self.is_active[source]

    def _widen(self, width: int) -> None:
        wider = np.zeros((self._max_num_seqs, max(width, 2 * self.block_tables.shape[1])), np.int32)
        wider[:, : self.block_tables.shape[1]] = self.block_tables
        self.block_tables = wider
