"""What the machine was built with: sizes, limits and policy values. Frozen; checked at the edge.

`forebay.config` turns user settings and measured facts into this; the machine trusts it.
"""

from dataclasses import dataclass, field
from enum import Enum

from forebay.core.policies import Preset, Rules
from forebay.units import MAX_BRANCHES, div_ceil


class Policy(Enum):
    """The order of both admission and yielding."""

    FCFS = "fcfs"
    PRIORITY = "priority"


class PreemptionMode(Enum):
    """How victims yield. `AUTO` takes the cheaper by predicted cost, event by event."""

    RECOMPUTE = "recompute"
    SWAP = "swap"
    AUTO = "auto"
    GROUPS = "groups"
    """Groups are swapped, single sequences recomputed (vLLM V0's default)."""


class Fencing(Enum):
    """Which frees wait until no step in flight can still write the block.

    Compute and in-step copies are ordered, so `OFF` is exact for them; an asynchronous copier
    needs `IN_FLIGHT`.
    """

    OFF = "off"
    IN_FLIGHT = "in_flight"


@dataclass(slots=True, frozen=True, kw_only=True)
class ArtificialPressure:
    """Refuse allocations with `probability`, at most `max_refusals` times, reproducibly.

    Source: vLLM V0's artificial preemption (one half, up to 500), here with a seed.
    """

    seed: int = 0
    probability: float = 0.5
    max_refusals: int = 500


@dataclass(slots=True, frozen=True, kw_only=True)
class Costs:
    """Predicted costs, measured at start by the executor. Integer nanoseconds, all at least 1."""

    prefill_ns_per_token: int = 1_000_000
    """Computing one prompt token in a full chunk."""
    step_overhead_ns: int = 50_000_000
    """What a step costs before its first token (reading the weights)."""
    swap_ns_per_block: int = 100_000
    """Copying one block, one way."""


@dataclass(slots=True, frozen=True, kw_only=True)
class Limits:
    """Sizes and policies of one scheduler. Block counts are usable blocks."""

    num_blocks: int
    block_size: int
    num_host_blocks: int = 0
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 2048
    max_model_len: int = 2048
    long_prefill_token_threshold: int = 0
    """Most prompt tokens of one request in one step; 0: no limit of its own."""
    chunked_prefill: bool = True
    watermark: float = 0.0
    """Share of the pool kept free when admitting while something runs."""
    prefix_caching: bool = True
    policy: Policy = Policy.FCFS
    preemption_mode: PreemptionMode = PreemptionMode.AUTO
    steps_in_flight: int = 1
    fencing: Fencing = Fencing.OFF
    pressure: ArtificialPressure | None = None
    expected_output_share: float = 0.75
    """Share of what a request may still generate that it is expected to; 0: start what fits."""
    max_preemption_lead: int = 3
    """No request is preempted more than this many times more often than an equal peer."""
    costs: Costs = field(default_factory=Costs)
    preset: Preset = Preset.FOREBAY
    rules: Rules = field(default_factory=Rules)
    reserve_full_prompt: bool = True
    """By-chunk granting only: admit if all known tokens fit, not just the first chunk."""
    max_branches: int = MAX_BRANCHES
    """Most sequences of one request."""

    @property
    def watermark_blocks(self) -> int:
        """Blocks kept free by the watermark, rounded down."""
        return int(self.watermark * (self.num_blocks + self.rules.watermark_spare_blocks))

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that hold `num_tokens` tokens of one sequence."""
        return div_ceil(num_tokens, self.block_size)

    def blocks_for_group(self, num_prompt: int, num_tokens: int, num_branches: int) -> int:
        """Blocks of `num_branches` sequences of `num_tokens` that share `num_prompt`'s full blocks.

        The one capacity function of start-up, admission and allocation: beyond the prompt its
        partial last block is counted once a branch, because copy-on-write gives each its own.
        """
        if num_branches == 1 or num_tokens <= num_prompt:
            return self.blocks_for(num_tokens)
        shared = num_prompt // self.block_size
        return shared + num_branches * (self.blocks_for(num_tokens) - shared)

    def longest_group(self, num_prompt: int, num_branches: int) -> int:
        """The largest length (tokens a sequence) at which such a group still fits, 0 if none.

        The last sampled token needs no slot, hence the extra one.
        """
        if self.blocks_for(num_prompt) > self.num_blocks:
            return 0
        shared = num_prompt // self.block_size
        private = (self.num_blocks - shared) // num_branches
        return max(num_prompt, (shared + private) * self.block_size) + 1
