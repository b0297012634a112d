"""How memory is divided at start, and whether what was asked for fits. Arithmetic only.

The number of blocks that this hands out is what admission judges by later, through the same
functions of `Limits`: what is accepted here is served there.
"""

from dataclasses import dataclass

from forebay.config import EngineConfig, whole_prompt_fault
from forebay.core.limits import Limits
from forebay.errors import CapacityError, ConfigError
from forebay.units import div_ceil

GIB = 1 << 30
MIB = 1 << 20

DEFAULT_CPU_POOL_BYTES = 2 * GIB
"""Touching it takes about a second a GiB; vLLM 0.25.1 takes 4 GiB on a CPU."""
DEFAULT_SWAP_BYTES = 4 * GIB
"""Source: vLLM V0, `swap_space`."""
SMALL_SWAP_BYTES = 1 * GIB
"""Taken even beside a small KV pool, so that many requests can be swapped at once."""
FIT = -1
"""`max_model_len` that asks for the longest the pool can hold. Source: vLLM 0.25.1."""


@dataclass(slots=True, frozen=True, kw_only=True)
class MemoryFacts:
    """What was found at start, in bytes, before anything is loaded.

    `device_free` and `device_total`: of the accelerator; on a CPU both are the host's.
    """

    weights: int
    activations: int
    kv_per_token: int
    host_free: int
    device_free: int
    device_total: int
    longest_exact: int
    """Tokens up to which the model computes what it was trained for."""


@dataclass(slots=True, frozen=True, kw_only=True)
class MemoryPlan:
    """The sizes an engine is built with."""

    num_blocks: int
    num_host_blocks: int
    block_size: int
    max_model_len: int
    block_bytes: int
    weights: int
    activations: int
    notes: tuple[str, ...] = ()
    """What was made smaller than usual, and why."""

    @property
    def num_tokens(self) -> int:
        """Tokens that the KV pool holds."""
        return self.num_blocks * self.block_size

    @property
    def num_longest(self) -> float:
        """How many requests of `max_model_len` fit at once."""
        return self.num_blocks / longest_blocks(self.max_model_len, self.block_size)

    def lines(self) -> list[str]:
        """For people: how memory divides, and what fits."""
        kv, host = self.num_blocks * self.block_bytes, self.num_host_blocks * self.block_bytes
        return [
            f"memory: weights {self.weights / MIB:,.0f} MiB, activations up to "
            f"{self.activations / MIB:,.0f} MiB, KV pool {kv / MIB:,.0f} MiB "
            f"({self.num_blocks:,} blocks of {self.block_size} tokens), "
            f"host swap {host / MIB:,.0f} MiB",
            f"fits: {self.num_tokens:,} tokens, or {self.num_longest:.1f} requests of "
            f"max_model_len {self.max_model_len:,}",
            *self.notes,
        ]


def longest_blocks(max_model_len: int, block_size: int) -> int:
    """Blocks of one request of `max_model_len` tokens, whose last token needs no slot."""
    return div_ceil(max_model_len - 1, block_size)


def plan_memory(config: EngineConfig, facts: MemoryFacts) -> MemoryPlan:
    """Divides memory by `config`.

    Raises: CapacityError if the weights, the pool or one longest request do not fit.
    """
    block_bytes = facts.kv_per_token * config.block_size
    free = _free_after_weights(config, facts)
    wanted_len = config.max_model_len
    if wanted_len is None or wanted_len == FIT:
        wanted_len = facts.longest_exact
    num_blocks = _given_blocks(config, block_bytes)
    if num_blocks is None:
        num_blocks = _usual_blocks(config, free, block_bytes, wanted_len)
    elif num_blocks * block_bytes > free:
        raise CapacityError(
            f"a KV pool of {num_blocks} blocks takes {_gib(num_blocks * block_bytes)}, but "
            f"{_gib(free)} is free beside weights and activations: at most "
            f"{max(0, free) // block_bytes} blocks fit"
        )
    max_model_len = _settled_len(config, num_blocks, wanted_len)
    host, notes = _host_blocks(config, facts, num_blocks, max_model_len)
    return MemoryPlan(
        num_blocks=num_blocks,
        num_host_blocks=host,
        block_size=config.block_size,
        max_model_len=max_model_len,
        block_bytes=block_bytes,
        weights=facts.weights,
        activations=facts.activations,
        notes=notes,
    )


def _free_after_weights(config: EngineConfig, facts: MemoryFacts) -> int:
    free = facts.device_free
    if config.device != "cpu":
        used = facts.device_total - facts.device_free
        free = int(config.gpu_memory_utilization * facts.device_total) - used
    free -= facts.weights + facts.activations
    if free <= 0:
        raise CapacityError(
            f"weights ({_gib(facts.weights)}) and activations ({_gib(facts.activations)}) do not "
            f"fit in the {_gib(free + facts.weights + facts.activations)} that may be used: free "
            "memory, take a smaller model or dtype, or lower max_num_batched_tokens"
        )
    return free


def _given_blocks(config: EngineConfig, block_bytes: int) -> int | None:
    if config.num_gpu_blocks_override is not None:
        return config.num_gpu_blocks_override
    if config.kv_tokens is not None:
        return config.kv_tokens // config.block_size
    if config.kv_cache_memory_bytes is not None:
        return config.kv_cache_memory_bytes // block_bytes
    return None


def _usual_blocks(config: EngineConfig, free: int, block_bytes: int, wanted_len: int) -> int:
    if config.device != "cpu":
        return free // block_bytes
    one = longest_blocks(wanted_len, config.block_size)
    usual = min(one * config.max_num_seqs, DEFAULT_CPU_POOL_BYTES // block_bytes)
    # Half is left to the host's other work and to the swap pool.
    return min(max(usual, one), free // 2 // block_bytes)


def _settled_len(config: EngineConfig, num_blocks: int, wanted_len: int) -> int:
    """The length that holds, or the reason why it cannot."""
    lone = Limits(num_blocks=max(num_blocks, 0), block_size=config.block_size)
    largest = lone.longest_group(0, 1)
    if config.max_model_len == FIT:
        wanted_len = min(wanted_len, largest)
    if wanted_len < 2 or wanted_len > largest:
        raise CapacityError(
            f"one request of max_model_len {wanted_len} needs "
            f"{longest_blocks(wanted_len, config.block_size)} blocks of {config.block_size} "
            f"tokens, but the KV pool has {num_blocks}: the largest max_model_len that fits is "
            f"{largest if num_blocks > 0 else 0}; lower max_model_len (-1: whatever fits) or "
            "enlarge the pool (kv_tokens, num_gpu_blocks_override or kv_cache_memory_bytes)"
        )
    if not config.enable_chunked_prefill and wanted_len > config.max_num_batched_tokens:
        raise ConfigError(whole_prompt_fault(wanted_len, config.max_num_batched_tokens))
    return wanted_len


def _host_blocks(
    config: EngineConfig, facts: MemoryFacts, num_blocks: int, max_model_len: int
) -> tuple[int, tuple[str, ...]]:
    if config.preemption_mode == "recompute":
        return 0, ()
    block_bytes = facts.kv_per_token * config.block_size
    free = facts.host_free
    if config.device == "cpu":
        free -= facts.weights + facts.activations + num_blocks * block_bytes
    if config.swap_space is not None:
        wanted = int(config.swap_space * GIB)
        if wanted > free:
            raise CapacityError(
                f"swap_space {config.swap_space:g} GiB does not fit: {_gib(max(free, 0))} of host "
                "memory is free beside all else; lower swap_space, or leave it out to have it "
                "sized by the host"
            )
        return _at_least_one(config, wanted // block_bytes), ()
    useful = config.max_num_seqs * longest_blocks(max_model_len, config.block_size)
    usual = max(num_blocks * block_bytes, SMALL_SWAP_BYTES)
    usual = min(usual, DEFAULT_SWAP_BYTES, useful * block_bytes)
    bounded = min(usual, max(free, 0) // 2)
    notes: tuple[str, ...] = ()
    if bounded < usual:
        notes = (f"host memory is short: swap pool of {_gib(bounded)} instead of {_gib(usual)}",)
    return _at_least_one(config, bounded // block_bytes), notes


def _at_least_one(config: EngineConfig, num_host_blocks: int) -> int:
    if config.preemption_mode == "swap" and num_host_blocks < 1:
        raise CapacityError(
            'preemption_mode="swap", but there is no host memory for even one block: raise '
            'swap_space, or choose preemption_mode="recompute"'
        )
    return num_host_blocks


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / GIB:.2f} GiB"
