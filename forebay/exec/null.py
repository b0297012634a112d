"""An executor without a model: for tests of the engine and for measuring the scheduler alone.

It keeps the same books as the real one and holds the scheduler to the same promises. With
`BlockContents` it also follows what every block would hold, so that a block that was reused too
early, copied wrongly or never computed is found by the first step that would read it.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from forebay.core.effects import Clone, Copy, Step, SwapIn, SwapOut
from forebay.engine.ports import ExecRequest, StepResult, TokenLogprobs
from forebay.errors import DeviceFault, InvariantError
from forebay.exec.batch import Batch
from forebay.exec.ledger import Ledger, Work
from forebay.exec.token_buffers import TokenBuffer
from forebay.units import RequestId, SeqId, request_of

_PURPOSE = 0x6E756C6C
_EMPTY = 0


class NullExecutor:
    """Token = a fixed function of (request id, branch, output position); promises as `Executor`.

    Stop tokens end a sequence as ever, and `min_tokens` holds them off. Log-probabilities are
    those of a model that is certain of its token.
    """

    def __init__(
        self,
        *,
        block_size: int,
        max_num_seqs: int,
        num_blocks: int,
        vocab_size: int = 49_152,
        contents: "BlockContents | None" = None,
    ) -> None:
        self._vocab_size = vocab_size
        self._contents = contents
        self._is_closed = False
        self.ledger = Ledger(
            block_size=block_size, max_num_seqs=max_num_seqs, num_blocks=num_blocks
        )

    def add(self, request: ExecRequest) -> None:
        """Takes a request's tokens and sampling parameters."""
        self.ledger.add(request)

    def execute(self, step: Step) -> StepResult:
        """Performs one step. Raises `InvariantError` when the step breaks a promise."""
        if self._is_closed:
            raise DeviceFault("the executor is closed")
        work = self.ledger.begin(step)
        if self._contents is not None:
            self._contents.forget(step.ended)
            self._contents.copy(step.copies)
            self._contents.compute(self.ledger.batch, work)
        token_ids = null_tokens(work.buffers, self._vocab_size)
        for at in work.special.tolist():
            token_ids[at] = _held_off(token_ids[at], work.buffers[at], self._vocab_size)
        result = self.ledger.finish(step, work, token_ids)
        for at in work.special.tolist():
            num_top = work.buffers[at].request.sampling.logprobs
            if num_top is not None:
                top = {token_ids[at]: 0.0} if num_top else {}
                result.logprobs[work.buffers[at].seq_id] = TokenLogprobs(0.0, 1, top)
        return result

    def close(self) -> None:
        """Ends the executor. Idempotent."""
        self._is_closed = True


def null_tokens(buffers: Sequence[TokenBuffer], vocab_size: int) -> list[int]:
    """The next token of each sequence, if nothing holds it off."""
    keys = np.array(
        [(request_of(buffer.seq_id), buffer.branch, buffer.num_output) for buffer in buffers],
        np.uint64,
    ).reshape(len(buffers), 3)
    tokens: list[int] = (keyed_fractions(_PURPOSE, keys) * vocab_size).astype(np.int64).tolist()
    return tokens


def keyed_fractions(first: int, keys: NDArray[np.uint64]) -> NDArray[np.float64]:
    """`forebay.units.keyed_fraction(first, *row)` of every row of `keys` (num_rows, num_keys)."""
    state = np.full(len(keys), 0x9E3779B97F4A7C15, np.uint64)
    columns = [np.full(len(keys), first, np.uint64), *keys.T]
    for column in columns:
        state = (state ^ column) * np.uint64(0xBF58476D1CE4E5B9)
        state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        state ^= state >> np.uint64(31)
    return (state >> np.uint64(11)) / np.float64(1 << 53)


def _held_off(token_id: int, buffer: TokenBuffer, vocab_size: int) -> int:
    """The token, or the next one that does not stop where stops are not due yet."""
    if buffer.num_output >= buffer.request.sampling.min_tokens:
        return token_id
    for step in range(vocab_size):
        candidate = (token_id + step) % vocab_size
        if candidate not in buffer.stop_token_ids:
            return candidate
    raise InvariantError(f"every token stops sequence {buffer.seq_id}")


class BlockContents:
    """What each slot of both pools holds: a digest of the tokens up to the one computed there.

    Reading checks every position that attention would read, of every row that computes.
    """

    def __init__(self, *, block_size: int, num_blocks: int, num_host_blocks: int = 0) -> None:
        self._block_size = block_size
        self._device = np.full((num_blocks, block_size), _EMPTY, np.int64)
        self._host = np.full((num_host_blocks, block_size), _EMPTY, np.int64)
        self._digests: dict[SeqId, list[int]] = {}

    def forget(self, ended: Sequence[RequestId]) -> None:
        """Drops the digests of ended requests' tokens; what the slots hold stays."""
        gone = set(ended)
        for seq in [seq for seq in self._digests if request_of(seq) in gone]:
            del self._digests[seq]

    def copy(self, copies: Sequence[Copy]) -> None:
        """Performs the copies one by one."""
        for copy in copies:
            match copy:
                case SwapOut(block=block, slot=slot):
                    self._host[slot] = self._device[block]
                case SwapIn(slot=slot, block=block):
                    self._device[block] = self._host[slot]
                case Clone(src=src, dst=dst):
                    self._device[dst] = self._device[src]

    def compute(self, batch: Batch, work: Work) -> None:
        """Writes what all rows compute, then checks what they read. Raises `InvariantError`."""
        rows = np.unique(work.token_rows).tolist()
        for row in rows:
            buffer = batch.buffers[row]
            positions = work.positions[work.token_rows == row]
            digests = np.array(self._known_digests(buffer), np.int64)
            slots = batch.slots(np.full(len(positions), row, np.int32), positions)
            self._device.reshape(-1)[slots] = digests[positions]
        for row in rows:
            self._check(batch, row)

    def _check(self, batch: Batch, row: int) -> None:
        buffer = batch.buffers[row]
        num_computed = int(batch.num_computed[row])
        positions = np.arange(num_computed, dtype=np.int32)
        slots = batch.slots(np.full(num_computed, row, np.int32), positions)
        found = self._device.reshape(-1)[slots]
        wrong = np.flatnonzero(found != self._known_digests(buffer)[:num_computed])
        if len(wrong):
            block = int(slots[wrong[0]]) // self._block_size
            what = "nothing" if found[wrong[0]] == _EMPTY else "something else"
            raise InvariantError(
                f"sequence {buffer.seq_id} reads token {int(wrong[0])} of {num_computed} from "
                f"block {block}, which holds {what}"
            )

    def _known_digests(self, buffer: TokenBuffer) -> list[int]:
        digests = self._digests.setdefault(buffer.seq_id, [])
        for at in range(len(digests), len(buffer.tokens)):
            parent = digests[-1] if digests else _EMPTY
            digests.append(hash((parent, buffer.tokens[at])) or 1)
        return digests
