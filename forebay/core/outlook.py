"""If it started now, would it run long enough to be worth it?

Running one more request spreads a step's fixed cost over one more row, until the pool is full and
the newest must yield. What yielding throws away has to be paid by what was gained until then. With
cheap swapping that takes a few steps; with recomputation it may take longer than the request lives.

The pool's future is projected as in the future-peak admission of LightLLM (Past-Future scheduler,
ASPLOS'25): everybody grows a token a step, those with the least to go end first and give back what
they hold. How much a request will still generate is not known: a share of what it may, and not
more than what requests that stopped by themselves lately had left at the same point.
"""

from typing import Protocol

from forebay.core.effects import Yield
from forebay.core.kv import KvSpace
from forebay.core.limits import Limits, PreemptionMode
from forebay.core.queues import Queues
from forebay.core.request import Request, Sequence
from forebay.core.throttle import Throttle
from forebay.units import div_ceil


class Prospects(Protocol):
    """What admission asks, besides room now, before a request starts beside others."""

    def pays(self, request: Request, cost: int) -> bool:
        """Whether a request that takes `cost` blocks now should start."""

    def note_stopped(self, num_output: int) -> None:
        """A sequence stopped by itself after so many output tokens."""


_MEMORY = 1 / 32  # weight of one more finished output in the moving average


class Outlook:
    """Projects the pool, and remembers how long outputs were."""

    def __init__(self, limits: Limits, kv: KvSpace, queues: Queues, throttle: Throttle) -> None:
        self._limits = limits
        self._kv = kv
        self._queues = queues
        self._throttle = throttle
        self._mean_output: float | None = None

    def note_stopped(self, num_output: int) -> None:
        """A sequence stopped by itself after so many output tokens."""
        if self._mean_output is None:
            self._mean_output = float(num_output)
        self._mean_output += _MEMORY * (num_output - self._mean_output)

    def pays(self, request: Request, cost: int) -> bool:
        """Whether a request that takes `cost` blocks now is expected to earn what it may lose."""
        rest = max(self._expected_rest(request, seq) for seq in request.live)
        prefill = self._steps_to_prefill(request)
        needed = prefill + min(rest, self._steps_to_earn(request))
        return self._steps_until_full(request, cost, prefill, prefill + rest) >= needed

    def _steps_to_prefill(self, request: Request) -> float:
        """Steps before the one that brings its first token, in which it holds blocks all the same.

        Prefills that are held back take as much longer as lately.
        """
        most = self._limits.max_num_batched_tokens
        chunk = min(self._limits.long_prefill_token_threshold or most, most)
        chunks = div_ceil(max(seq.to_compute for seq in request.live), chunk)
        return (chunks - 1) / (1 - self._throttle.share)

    def _expected_rest(self, request: Request, seq: Sequence) -> float:
        """Output tokens that a sequence is expected to generate from now on."""
        rest = self._limits.expected_output_share * (seq.limit - seq.total)
        if self._mean_output is None or request.spec.runs_to_limit:
            return rest
        generated = seq.total - request.spec.num_prompt
        return min(rest, max(self._mean_output - generated, self._limits.block_size))

    def _steps_to_earn(self, request: Request) -> float:
        """Steps it must run so that what it gains covers the loss when it yields after them.

        Gain a step: the fixed cost of a step, shared by one row more. Loss: what moving or
        computing its tokens again costs, those included that it generates until then.
        """
        costs = self._limits.costs
        rows = sum(len(req.live) for req in self._queues.running) + len(request.live)
        gain = costs.step_overhead_ns / rows
        loss = float(costs.prefill_ns_per_token)
        if self._would_yield_by(request) is Yield.SWAP:
            loss = min(loss, 2 * costs.swap_ns_per_block / self._limits.block_size)
        if gain <= loss:
            return float("inf")
        length = max(seq.known for seq in request.live)
        return length * loss / (gain - loss)

    def _would_yield_by(self, request: Request) -> Yield:
        mode = self._limits.preemption_mode
        blocks = sum(self._limits.blocks_for(seq.total) for seq in request.live)
        if mode is PreemptionMode.RECOMPUTE or blocks > self._kv.host.num_free:
            return Yield.RECOMPUTE
        return Yield.SWAP

    def _steps_until_full(
        self, candidate: Request, cost: int, prefill: float, horizon: float
    ) -> float:
        """Steps until somebody finds no block, at most `horizon`."""
        size = self._limits.block_size
        sharing = [*self._queues.running, *self._queues.parked, candidate]
        sequences = [(req, seq) for req in sharing for seq in req.live]
        # tokens that fit in free blocks and in the rest of each sequence's last one
        room = float((self._kv.pool.num_free - cost) * size)
        room += sum(-seq.total % size for _, seq in sequences)
        room += prefill  # meanwhile the candidate does not grow
        ends = sorted(
            (self._expected_rest(req, seq) + (prefill if req is candidate else 0.0), seq.total)
            for req, seq in sequences
        )
        now, rows = 0.0, len(ends)
        for end, total in ends:
            growth = rows * (end - now)
            if growth > room:
                return now + room / rows
            if end >= horizon:
                return horizon
            room += total + end - growth
            now, rows = end, rows - 1
        return horizon
