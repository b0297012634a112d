"""An executor on symbolic memory: each slot remembers which token prefix it was computed from.

Before a row samples, every slot that it attends to must hold the state of exactly its own prefix.
A wrong copy, a block reused too early, a missed copy-on-write or a stale prefix hit shows at once.
The next token is a hash of the prefix, so outputs can be compared with a run without any memory.
"""

from collections import defaultdict
from dataclasses import dataclass, field
from hashlib import blake2b

from forebay.block_hash import chain_hash
from forebay.core.effects import Clone, Load, Step, SwapIn, SwapOut
from forebay.core.events import BlockFilled, StepDone
from forebay.units import LoadId, RequestId, SeqId, branch_of, request_of, seq_id


def prefix_state(state: bytes, token: int) -> bytes:
    """What the slot of `token` holds, given the state of the slot before it."""
    return blake2b(state + token.to_bytes(4, "little"), digest_size=8).digest()


@dataclass(frozen=True)
class Work:
    """What a request is, to the executor: its prompt, its taste and its stop rule."""

    prompt: tuple[int, ...]
    stop_every: int = 0
    """One in so many tokens is a stop token; 0: none."""
    salt: int = 0

    def next_token(self, state: bytes, branch: int) -> int:
        """The token after a prefix."""
        key = bytes([branch, self.salt % 256])
        return int.from_bytes(blake2b(state + key, digest_size=4).digest(), "little") % 50_000

    def is_stop(self, token: int) -> bool:
        """Whether the token ends the sequence."""
        return self.stop_every > 0 and token % self.stop_every == 0

    def output(self, branch: int, max_tokens: int) -> list[int]:
        """What a run without pressure generates."""
        state = b""
        for token in self.prompt:
            state = prefix_state(state, token)
        out: list[int] = []
        while len(out) < max_tokens:
            out.append(self.next_token(state, branch))
            if self.is_stop(out[-1]):
                break
            state = prefix_state(state, out[-1])
        return out


@dataclass
class Row:
    """A row of the batch."""

    table: list[int]
    computed: int


@dataclass
class ShadowExecutor:
    """Performs steps on symbolic memory and checks every promise that `Step` makes."""

    num_blocks: int
    block_size: int
    num_host_blocks: int
    report_hashes: bool
    rows: dict[SeqId, Row] = field(default_factory=dict)
    tokens: dict[SeqId, list[int]] = field(default_factory=dict)
    states: dict[SeqId, list[bytes]] = field(default_factory=dict)
    """What each slot of a sequence must hold, as far as it was asked."""
    works: dict[RequestId, Work] = field(default_factory=dict)
    stopped: set[SeqId] = field(default_factory=set)
    filled: dict[SeqId, list[bytes]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.device = [[b""] * self.block_size for _ in range(self.num_blocks)]
        self.host = [[b""] * self.block_size for _ in range(self.num_host_blocks)]
        self.num_tokens = 0
        self.loading: dict[LoadId, list[bytes]] = {}
        self.dropped: dict[RequestId, int] = defaultdict(int)

    def add(self, request_id: RequestId, work: Work, hashes: tuple[bytes, ...]) -> None:
        """A request's tokens arrive before any step joins it."""
        self.works[request_id] = work
        self.tokens[seq_id(request_id, 0)] = list(work.prompt)
        self.filled[seq_id(request_id, 0)] = list(hashes)

    def execute(self, step: Step) -> StepDone:
        """Performs one step in the documented order."""
        self._change_batch(step)
        for copy in step.copies:
            self._copy(copy)
        spans = self._spans(step)
        for seq, (start, stop) in spans.items():
            self._write(seq, start, stop)
        stops, filled = [], []
        forks = {fork.parent: fork.children for fork in step.forks}
        for seq, (_, stop) in spans.items():
            self.rows[seq].computed = stop
            self._check_context(seq, stop)
            if stop == len(self.tokens[seq]):
                for child in forks.get(seq, ()):
                    self._fork(seq, child)
                for out in (seq, *forks.get(seq, ())):
                    self._sample(out, stops, filled)
        assert sum(stop - start for start, stop in spans.values()) == step.num_tokens
        assert len(spans) == step.num_rows
        return StepDone(seq=step.seq, stops=tuple(stops), filled=tuple(filled))

    def plan_load(self, load: Load) -> None:
        """An external store is to fill blocks beside the steps; what it writes is settled here."""
        stop = load.start + load.num_tokens
        self.loading[load.load_id] = self._states(load.seq_id, stop)[load.start : stop]

    def perform_load(self, load: Load) -> None:
        """The store writes, whatever steps are still to be executed."""
        for at, state in enumerate(self.loading.pop(load.load_id)):
            self.device[load.blocks[at // self.block_size]][at % self.block_size] = state

    def _change_batch(self, step: Step) -> None:
        for leave in step.left:
            del self.rows[leave.seq_id]
        for request_id in step.ended:
            self.works.pop(request_id)
            for branch in range(8):
                self.tokens.pop(seq_id(request_id, branch), None)
        for join in step.joined:
            assert join.seq_id not in self.rows
            assert len(self.tokens[join.seq_id]) == join.num_known, (join, self.tokens)
            self.rows[join.seq_id] = Row(list(join.blocks), join.num_computed)
        for grow in step.grown:
            self.rows[grow.seq_id].table.extend(grow.blocks)

    def _copy(self, copy: SwapOut | SwapIn | Clone) -> None:
        match copy:
            case SwapOut(block, slot):
                self.host[slot] = list(self.device[block])
            case SwapIn(slot, block):
                self.device[block] = list(self.host[slot])
            case Clone(seq, index, src, dst):
                self.device[dst] = list(self.device[src])
                if seq in self.rows and self.rows[seq].table[index] == src:
                    self.rows[seq].table[index] = dst

    def _spans(self, step: Step) -> dict[SeqId, tuple[int, int]]:
        chunks = {chunk.seq_id: chunk for chunk in step.chunks}
        children = {child for fork in step.forks for child in fork.children}
        spans = {}
        for seq, row in self.rows.items():
            if seq in chunks:
                chunk = chunks[seq]
                assert chunk.start == row.computed
                spans[seq] = (chunk.start, chunk.start + chunk.num_tokens)
                if seq not in self.stopped:
                    assert chunk.samples == (spans[seq][1] == len(self.tokens[seq]))
            elif seq not in step.idle and seq not in children:
                spans[seq] = (row.computed, row.computed + 1)
        return spans

    def _write(self, seq: SeqId, start: int, stop: int) -> None:
        if seq in self.stopped:
            return
        table, states = self.rows[seq].table, self._states(seq, stop)
        for at in range(start, stop):
            self.device[table[at // self.block_size]][at % self.block_size] = states[at]

    def _check_context(self, seq: SeqId, stop: int) -> None:
        if seq in self.stopped:
            return
        states = self._states(seq, stop)
        held = [state for block in self.rows[seq].table for state in self.device[block]]
        if held[:stop] != states[:stop]:
            at = next(at for at in range(stop) if held[at : at + 1] != [states[at]])
            raise AssertionError(f"sequence {seq} finds foreign KV at {at}")
        self._state = states[stop - 1]

    def _states(self, seq: SeqId, stop: int) -> list[bytes]:
        known = self.states.setdefault(seq, [])
        for token in self.tokens[seq][len(known) : stop]:
            known.append(prefix_state(known[-1] if known else b"", token))
        return known

    def _fork(self, parent: SeqId, child: SeqId) -> None:
        self.rows[child] = Row(list(self.rows[parent].table), self.rows[parent].computed)
        self.tokens[child] = list(self.tokens[parent])
        self.filled[child] = list(self.filled[parent])

    def _sample(self, seq: SeqId, stops: list[SeqId], filled: list[BlockFilled]) -> None:
        if seq in self.stopped:
            return
        work = self.works[request_of(seq)]
        token = work.next_token(self._state, branch_of(seq))
        tokens = self.tokens[seq]
        tokens.append(token)
        if work.is_stop(token):
            self.stopped.add(seq)
            stops.append(seq)
        if self.report_hashes and len(tokens) % self.block_size == 0:
            known = self.filled[seq]
            parent = known[-1] if known else b"root"
            digest = chain_hash(parent, tokens[-self.block_size :])
            filled.append(BlockFilled(seq, len(known), digest))
            known.append(digest)
