"""The token ids of every sequence, prompt and output, from `add` until its request ends.

A buffer outlives the row that its sequence has in the batch, so that a preempted sequence can be
computed again from it. Tokens never pass through the scheduler.
"""

from array import array
from collections.abc import Iterable
from dataclasses import dataclass

from forebay.block_hash import chain_hash
from forebay.core.events import BlockFilled
from forebay.engine.ports import ExecRequest
from forebay.errors import InvariantError
from forebay.units import RequestId, SeqId, branch_of, request_of, seq_id


@dataclass(slots=True, eq=False)
class TokenBuffer:
    """One sequence: what is known of it, and what sampling its next token depends on."""

    seq_id: SeqId
    request: ExecRequest
    tokens: "array[int]"
    """Prompt, then output."""
    num_prompt: int
    stop_token_ids: frozenset[int]
    """Tokens that end this sequence, already without the model's own under `ignore_eos`."""
    needs_more_than_argmax: bool
    """Its next token or what is told about it takes more than the likeliest raw logit."""
    last_hash: bytes | None
    """Chained hash of the last full block of known tokens; None without prefix cache."""
    branch: int
    stopped: bool = False
    """A stop token was sampled: no further token is computed or told."""
    counts: "TokenCounts | None" = None
    """Made by the sampler for a sequence with penalties when it first needs them."""

    @property
    def num_output(self) -> int:
        """Output tokens so far, which is the output position of the next one."""
        return len(self.tokens) - self.num_prompt

    def append(self, token_id: int) -> None:
        """Takes a sampled token; a stop token ends the sequence."""
        self.tokens.append(token_id)
        if token_id in self.stop_token_ids:
            self.stopped = True

    def fill_block(self, block_size: int) -> BlockFilled:
        """The block that the newest token completed; its hash is the parent of the next one's."""
        parent = self.last_hash
        if parent is None or len(self.tokens) % block_size:
            raise InvariantError(f"sequence {self.seq_id} completed no hashed block")
        self.last_hash = chain_hash(parent, self.tokens[-block_size:])
        return BlockFilled(self.seq_id, len(self.tokens) // block_size - 1, self.last_hash)


class TokenCounts:
    """How often each token occurs in an output, and which tokens occur at all.

    Caught up from the buffer before use: whatever happened to the row meanwhile, they agree.
    """

    __slots__ = ("_num_output", "_place", "_present", "counts", "ids", "present_ids")

    def __init__(self, prompt: Iterable[int]) -> None:
        self.ids = array("q")
        """Distinct output tokens in order of appearance; `counts` is parallel."""
        self.counts = array("q")
        self.present_ids = array("q", dict.fromkeys(prompt))
        """Distinct tokens of prompt and output in order of appearance."""
        self._present = set(self.present_ids)
        self._place: dict[int, int] = {}
        self._num_output = 0

    def catch_up(self, buffer: TokenBuffer) -> None:
        """Counts the output tokens that came since the last call."""
        for token_id in buffer.tokens[buffer.num_prompt + self._num_output :]:
            self._num_output += 1
            at = self._place.setdefault(token_id, len(self.ids))
            if at == len(self.ids):
                self.ids.append(token_id)
                self.counts.append(0)
            self.counts[at] += 1
            if token_id not in self._present:
                self._present.add(token_id)
                self.present_ids.append(token_id)


class TokenBuffers:
    """All buffers by sequence. Raises `InvariantError` on what the scheduler promised not to do."""

    def __init__(self) -> None:
        self._requests: dict[RequestId, list[TokenBuffer]] = {}
        self._of: dict[SeqId, TokenBuffer] = {}

    def __len__(self) -> int:
        return len(self._of)

    def add(self, request: ExecRequest) -> None:
        """Opens the buffer of branch 0 with the prompt."""
        if request.request_id in self._requests:
            raise InvariantError(f"request {request.request_id} was added twice")
        sampling = request.sampling
        own_stops = () if sampling.ignore_eos else request.stop_token_ids
        tokens = array("i", request.prompt_token_ids)
        if not tokens:
            raise InvariantError(f"request {request.request_id} has an empty prompt")
        stops = frozenset(own_stops).union(sampling.stop_token_ids or ())
        needs_more = (
            not sampling.is_greedy
            or sampling.has_penalties
            or sampling.logprobs is not None
            or sampling.min_tokens > 0
        )
        self._put(
            TokenBuffer(
                seq_id=seq_id(request.request_id, 0),
                request=request,
                tokens=tokens,
                num_prompt=len(tokens),
                stop_token_ids=stops,
                needs_more_than_argmax=needs_more,
                last_hash=request.last_hash,
                branch=0,
            )
        )

    def of(self, seq: SeqId) -> TokenBuffer:
        """The buffer of a sequence that was added or forked and whose request has not ended."""
        buffer = self._of.get(seq)
        if buffer is None:
            raise InvariantError(f"sequence {seq} has no tokens: it was never added, or has ended")
        return buffer

    def fork(self, parent: TokenBuffer, child: SeqId) -> TokenBuffer:
        """A branch with the parent's prompt. Forks happen before the first output token."""
        if child in self._of or request_of(child) != parent.request.request_id:
            raise InvariantError(f"sequence {child} cannot be forked from {parent.seq_id}")
        if parent.num_output:
            raise InvariantError(f"sequence {parent.seq_id} has output and cannot be forked")
        forked = TokenBuffer(
            seq_id=child,
            request=parent.request,
            tokens=parent.tokens[:],
            num_prompt=parent.num_prompt,
            stop_token_ids=parent.stop_token_ids,
            needs_more_than_argmax=parent.needs_more_than_argmax,
            last_hash=parent.last_hash,
            branch=branch_of(child),
        )
        self._put(forked)
        return forked

    def drop(self, request_id: RequestId) -> list[SeqId]:
        """Forgets an ended request and names its sequences.

        One that was never added is ignored: it may have ended before it came this far.
        """
        gone = [buffer.seq_id for buffer in self._requests.pop(request_id, ())]
        for seq in gone:
            del self._of[seq]
        return gone

    def _put(self, buffer: TokenBuffer) -> None:
        self._requests.setdefault(buffer.request.request_id, []).append(buffer)
        self._of[buffer.seq_id] = buffer
