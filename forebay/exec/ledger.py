"""What every executor does of a step besides computing it: who is in the batch, what they compute,
which tokens came of it. Each promise of the scheduler that a step relies on is checked here.

`begin` applies parts 1 to 4 of a step (see `forebay.core.effects`) and lays out part 5; the
executor copies blocks and computes; `finish` takes the tokens, part 6 included.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from forebay.core.effects import Chunk, Clone, Join, Step
from forebay.engine.ports import ExecRequest, StepResult
from forebay.errors import InvariantError
from forebay.exec.batch import Batch, IntArray
from forebay.exec.token_buffers import TokenBuffer, TokenBuffers
from forebay.units import RequestId, StepSeq

_NOTHING: IntArray = np.empty(0, np.int32)


@dataclass(slots=True, frozen=True, kw_only=True)
class Work:
    """The tokens that a step computes, flat, and the sequences that then sample.

    `token_ids`, `positions`, `token_rows` (T,): tokens of one row are consecutive and ascending.
    `sample_at` (N,): the tokens whose logits are wanted. `buffers` (M,), `logits_rows` (M,): who
    samples from which of the N logits; M > N when forked children sample from their parent's.
    `special` (S,): those of the M that need more than the likeliest raw logit.
    """

    token_ids: IntArray
    positions: IntArray
    token_rows: IntArray
    sample_at: IntArray
    sample_rows: IntArray
    logits_rows: IntArray
    buffers: Sequence[TokenBuffer]
    special: IntArray


class Ledger:
    """The batch, the token buffers and the checks that every executor shares."""

    def __init__(self, *, block_size: int, max_num_seqs: int, num_blocks: int) -> None:
        self._block_size = block_size
        self._last_seq: StepSeq | None = None
        self.buffers = TokenBuffers()
        self.batch = Batch(block_size=block_size, max_num_seqs=max_num_seqs, num_blocks=num_blocks)

    def add(self, request: ExecRequest) -> None:
        """Takes a request's tokens and sampling parameters."""
        self.buffers.add(request)

    def begin(self, step: Step) -> Work:
        """Brings rows and tables up to date and lays out what the step computes."""
        if self._last_seq is not None and step.seq <= self._last_seq:
            raise InvariantError(f"step {step.seq} comes after step {self._last_seq}")
        self._last_seq = step.seq
        batch = self.batch
        for leave in step.left:
            batch.leave(leave.seq_id)
        for request_id in step.ended:
            self._end(request_id)
        for join in step.joined:
            self._join(join)
        for grow in step.grown:
            batch.grow(grow.seq_id, grow.blocks)
        joined = {join.seq_id for join in step.joined}
        for copy in step.copies:
            if isinstance(copy, Clone) and copy.seq_id not in joined:
                self._clone(copy)
        return self._lay_out(step)

    def finish(self, step: Step, work: Work, token_ids: list[int]) -> StepResult:
        """Takes the sampled tokens, parallel to `work.buffers`, and tells what came of them."""
        batch = self.batch
        rows = work.sample_rows
        if step.forks:
            rows = np.concatenate([rows, self._join_children(step)])
        for buffer, token_id in zip(work.buffers, token_ids, strict=True):
            buffer.append(token_id)
        batch.last_token[rows] = token_ids
        batch.num_known[rows] += 1
        result = StepResult(
            seq=step.seq,
            seq_ids=[buffer.seq_id for buffer in work.buffers],
            token_ids=token_ids,
            stops=[buffer.seq_id for buffer in work.buffers if buffer.stopped],
        )
        # What a stop token completes is never computed, hence no block to share.
        for at in np.flatnonzero(batch.num_known[rows] % self._block_size == 0).tolist():
            buffer = work.buffers[at]
            if buffer.last_hash is not None and not buffer.stopped:
                result.filled.append(buffer.fill_block(self._block_size))
        for seq in result.stops:
            batch.stop(seq)
        return result

    # -- parts 1 to 4 --------------------------------------------------------------------------

    def _end(self, request_id: RequestId) -> None:
        for seq in self.buffers.drop(request_id):
            if seq in self.batch:
                raise InvariantError(f"request {request_id} ended with {seq} in the batch")

    def _join(self, join: Join) -> None:
        buffer = self.buffers.of(join.seq_id)
        num_known = len(buffer.tokens)
        if buffer.stopped:
            # The scheduler may learn late of a stop and count tokens that never came.
            self.batch.join(buffer, min(join.num_computed, num_known), join.blocks)
            return
        if num_known != join.num_known or not 0 <= join.num_computed < num_known:
            raise InvariantError(f"{num_known} tokens are here of {join}")
        self.batch.join(buffer, join.num_computed, join.blocks)

    def _clone(self, clone: Clone) -> None:
        # A victim that yields after its clone was planned leaves the copy in the step, without a
        # row: it is made for nothing, and harmless.
        if clone.seq_id in self.batch:
            self.batch.replace(clone.seq_id, clone.index, clone.src, clone.dst)

    # -- part 5 --------------------------------------------------------------------------------

    def _lay_out(self, step: Step) -> Work:
        batch = self.batch
        decode = self._decode_rows(step)
        positions = batch.num_computed[decode]
        num_known = batch.num_known[decode]
        if not np.array_equal(num_known, positions + 1):
            at = int(np.flatnonzero(num_known != positions + 1)[0])
            seq = batch.buffers[decode[at]].seq_id
            raise InvariantError(
                f"sequence {seq} has {positions[at]} of {num_known[at]} tokens computed and cannot "
                "decode: it must be in a chunk or idle"
            )
        batch.check_covered(decode, num_known)
        batch.num_computed[decode] = num_known
        if not step.chunks and not step.forks:
            return self._decode_work(decode, positions)
        return self._mixed_work(step, decode, positions)

    def _decode_rows(self, step: Step) -> IntArray:
        """Rows that no part of the step mentions and that have not stopped."""
        batch = self.batch
        mentioned = {chunk.seq_id for chunk in step.chunks}.union(step.idle)
        num_mentioned = len(step.chunks) + len(step.idle)
        if len(mentioned) != num_mentioned:
            raise InvariantError(f"step {step.seq} mentions a sequence in chunks and idle twice")
        num_decode = batch.num_rows - num_mentioned
        num_tokens = num_decode + sum(chunk.num_tokens for chunk in step.chunks)
        num_rows = num_decode + len(step.chunks)
        if (num_tokens, num_rows) != (step.num_tokens, step.num_rows):
            raise InvariantError(
                f"step {step.seq} promises {step.num_tokens} tokens of {step.num_rows} rows, but "
                f"its parts come to {num_tokens} of {num_rows}"
            )
        if not num_mentioned:
            return batch.active_rows()
        decodes = batch.is_active[: batch.num_rows].copy()
        decodes[[batch.row(chunk.seq_id) for chunk in step.chunks]] = False
        decodes[[batch.row(seq) for seq in step.idle]] = False
        return np.flatnonzero(decodes).astype(np.int32)

    def _decode_work(self, decode: IntArray, positions: IntArray) -> Work:
        batch = self.batch
        everyone = np.arange(len(decode), dtype=np.int32)
        return Work(
            token_ids=batch.last_token[decode],
            positions=positions,
            token_rows=decode,
            sample_at=everyone,
            sample_rows=decode,
            logits_rows=everyone,
            buffers=batch.buffers_of(decode),
            special=np.flatnonzero(batch.is_special[decode]).astype(np.int32),
        )

    def _mixed_work(self, step: Step, decode: IntArray, positions: IntArray) -> Work:
        batch = self.batch
        token_ids = [batch.last_token[decode]]
        all_positions = [positions]
        token_rows = [decode]
        sample_at = list(range(len(decode)))
        sample_rows = decode.tolist()
        end = len(decode)
        for chunk in step.chunks:
            row = self._take_chunk(chunk)
            if row is None:
                continue
            upto = chunk.start + chunk.num_tokens
            token_ids.append(np.array(batch.buffers[row].tokens[chunk.start : upto], np.int32))
            all_positions.append(np.arange(chunk.start, upto, dtype=np.int32))
            token_rows.append(np.full(chunk.num_tokens, row, np.int32))
            end += chunk.num_tokens
            if chunk.samples:
                sample_at.append(end - 1)
                sample_rows.append(row)
        buffers = [batch.buffers[row] for row in sample_rows]
        logits_rows = list(range(len(sample_rows)))
        place_of = {row: at for at, row in enumerate(sample_rows)}
        for fork in step.forks:
            row = batch.row(fork.parent)
            if row not in place_of:
                raise InvariantError(f"sequence {fork.parent} is forked but does not sample")
            for child in fork.children:
                buffers.append(self.buffers.fork(batch.buffers[row], child))
                logits_rows.append(place_of[row])
        special = [at for at, buffer in enumerate(buffers) if buffer.needs_more_than_argmax]
        return Work(
            token_ids=np.concatenate(token_ids),
            positions=np.concatenate(all_positions),
            token_rows=np.concatenate(token_rows),
            sample_at=np.array(sample_at, np.int32),
            sample_rows=np.array(sample_rows, np.int32),
            logits_rows=np.array(logits_rows, np.int32),
            buffers=buffers,
            special=np.array(special, np.int32),
        )

    def _take_chunk(self, chunk: Chunk) -> int | None:
        """The row of a chunk, whose progress is moved on; None for a sequence that has stopped."""
        batch = self.batch
        row = batch.row(chunk.seq_id)
        if not batch.is_active[row]:
            return None
        computed, known = int(batch.num_computed[row]), int(batch.num_known[row])
        end = chunk.start + chunk.num_tokens
        is_next = chunk.start == computed and chunk.num_tokens >= 1
        if not is_next or end > known or (chunk.samples and end != known):
            raise InvariantError(f"{chunk} does not go on from {computed} of {known} tokens")
        batch.check_covered(np.array([row], np.int32), np.array([end], np.int32))
        batch.num_computed[row] = end
        return row

    # -- part 6 --------------------------------------------------------------------------------

    def _join_children(self, step: Step) -> IntArray:
        rows = []
        for fork in step.forks:
            num_computed = int(self.batch.num_computed[self.batch.row(fork.parent)])
            blocks = self.batch.table(fork.parent)
            for child in fork.children:
                rows.append(self.batch.join(self.buffers.of(child), num_computed, blocks))
        return np.array(rows, np.int32)
