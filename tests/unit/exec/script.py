"""Writes steps by hand as a scheduler would: tables, clones, counts and swaps are looked after."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from forebay.core.effects import (
    Chunk,
    Clone,
    Fork,
    Grow,
    Join,
    JoinKind,
    Leave,
    LeaveKind,
    Step,
    SwapIn,
    SwapOut,
)
from forebay.engine.ports import ExecRequest, Executor, StepResult
from forebay.sampling_params import SamplingParams
from forebay.units import BlockId, HostSlot, RequestId, SeqId, StepSeq, request_of


def request(
    number: int = 0,
    prompt: Sequence[int] = (5, 6, 7, 8, 9),
    *,
    stop: Sequence[int] = (),
    seed: int = 0,
    last_hash: bytes | None = None,
    **sampling: object,
) -> ExecRequest:
    sampling.setdefault("temperature", 0.0)
    return ExecRequest(
        request_id=RequestId(number),
        prompt_token_ids=tuple(prompt),
        sampling=SamplingParams(**sampling),
        seed=seed,
        stop_token_ids=frozenset(stop),
        last_hash=last_hash,
    )


@dataclass
class Row:
    known: int
    computed: int = 0
    table: list[int] = field(default_factory=list)
    host: list[int] = field(default_factory=list)


class Script:
    """Feeds an executor. Calls between two `step` calls become parts of the next step."""

    def __init__(self, executor: Executor, *, block_size: int = 4, num_blocks: int = 64):
        self.executor = executor
        self.block_size = block_size
        self.rows: dict[int, Row] = {}
        self.running: list[int] = []
        self.outputs: dict[int, list[int]] = {}
        self.results: list[StepResult] = []
        self._holds = [0] * num_blocks
        self._slots = list(range(num_blocks))
        self._seq = 0
        self._new_step()

    def _new_step(self) -> None:
        self._seq += 1
        self.next = Step(seq=StepSeq(self._seq))

    # -- what happens to sequences

    def add(self, what: ExecRequest) -> int:
        self.executor.add(what)
        seq = what.request_id * 8
        self.rows[seq] = Row(known=len(what.prompt_token_ids))
        self.outputs[seq] = []
        self.join(seq)
        return seq

    def join(self, seq: int, kind: JoinKind = JoinKind.NEW) -> None:
        row = self.rows[seq]
        row.table += self._take(-(-row.known // self.block_size) - len(row.table))
        blocks = tuple(map(BlockId, row.table))
        self.next.joined.append(Join(SeqId(seq), kind, row.computed, row.known, blocks))
        self.running.append(seq)

    def leave(self, seq: int, kind: LeaveKind = LeaveKind.FINISHED) -> None:
        self.next.left.append(Leave(SeqId(seq), kind))
        self.running.remove(seq)
        self._drop(self.rows[seq].table)
        self.rows[seq].table = []

    def end(self, *seqs: int) -> None:
        for seq in seqs:
            self.leave(seq)
        self.next.ended.append(request_of(SeqId(seqs[0])))

    def preempt(self, seq: int) -> None:
        self.leave(seq, LeaveKind.RECOMPUTE)
        self.rows[seq].computed = 0

    def resume(self, seq: int) -> None:
        self.join(seq, JoinKind.RESUMED)

    def swap_out(self, *seqs: int) -> None:
        """Blocks that several of `seqs` share go out once."""
        slot_of: dict[int, int] = {}
        for seq in seqs:
            row = self.rows[seq]
            for block in row.table[: -(-row.computed // self.block_size)]:
                if block not in slot_of:
                    slot_of[block] = self._slots.pop(0)
                    self.next.copies.append(SwapOut(BlockId(block), HostSlot(slot_of[block])))
                row.host.append(slot_of[block])
        for seq in seqs:
            self.leave(seq, LeaveKind.SWAP)

    def swap_in(self, *seqs: int) -> None:
        block_of: dict[int, int] = {}
        for seq in seqs:
            row = self.rows[seq]
            for slot in row.host:
                if slot in block_of:
                    self._holds[block_of[slot]] += 1
                else:
                    block_of[slot] = self._take(1)[0]
                    self._slots.append(slot)
                    self.next.copies.append(SwapIn(HostSlot(slot), BlockId(block_of[slot])))
                row.table.append(block_of[slot])
            row.host = []
            self.join(seq, JoinKind.SWAPPED_IN)

    # -- the step

    def step(
        self,
        chunks: dict[int, int] | None = None,
        *,
        idle: Sequence[int] = (),
        forks: dict[int, Sequence[int]] | None = None,
    ) -> StepResult:
        """Rows not named decode. `chunks` maps sequences to numbers of tokens."""
        chunks = chunks or {}
        step = self.next
        step.idle = [SeqId(seq) for seq in idle]
        for seq in self.running:
            count = 0 if seq in idle else chunks.get(seq, 1)
            self._plan(step, seq, count, is_chunk=seq in chunks)
        for parent, children in (forks or {}).items():
            self._fork(step, parent, children)
        result = self.executor.execute(step)
        for seq, token in zip(result.seq_ids, result.token_ids, strict=True):
            self.outputs[seq].append(token)
        self.results.append(result)
        self._new_step()
        return result

    def decode(self, count: int) -> None:
        for _ in range(count):
            self.step()

    def prefill(self, *seqs: int) -> StepResult:
        return self.step({seq: self.rows[seq].known - self.rows[seq].computed for seq in seqs})

    def _plan(self, step: Step, seq: int, count: int, *, is_chunk: bool) -> None:
        row = self.rows[seq]
        if not count:
            return
        self._unshare(step, seq, row)
        grown = self._take(-(-(row.computed + count) // self.block_size) - len(row.table))
        if grown:
            row.table += grown
            step.grown.append(Grow(SeqId(seq), tuple(map(BlockId, grown))))
        samples = row.computed + count == row.known
        if is_chunk:
            step.chunks.append(Chunk(SeqId(seq), row.computed, count, samples))
        row.computed += count
        row.known += samples
        step.num_tokens += count
        step.num_rows += 1

    def _unshare(self, step: Step, seq: int, row: Row) -> None:
        index, offset = divmod(row.computed, self.block_size)
        if offset == 0 or self._holds[row.table[index]] == 1:
            return
        old = row.table[index]
        (new,) = self._take(1)
        self._drop([old])
        row.table[index] = new
        step.copies.append(Clone(SeqId(seq), index, BlockId(old), BlockId(new)))

    def _fork(self, step: Step, parent: int, children: Sequence[int]) -> None:
        row = self.rows[parent]
        step.forks.append(Fork(SeqId(parent), tuple(map(SeqId, children))))
        for child in children:
            for block in row.table:
                self._holds[block] += 1
            self.rows[child] = Row(row.known, row.computed, row.table[:])
            self.outputs[child] = []
            self.running.append(child)

    def _take(self, count: int) -> list[int]:
        free = [block for block, holds in enumerate(self._holds) if not holds][: max(count, 0)]
        assert len(free) == max(count, 0), "the script has no block left"
        for block in free:
            self._holds[block] = 1
        return free

    def _drop(self, blocks: Sequence[int]) -> None:
        for block in blocks:
            self._holds[block] -= 1
