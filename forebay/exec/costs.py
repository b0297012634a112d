"""What prefill, decode and swap cost on this machine, measured before the first request."""

import time
from collections.abc import Callable
from functools import partial

import numpy as np
import torch

from forebay.core.limits import Costs
from forebay.exec.kv_tensors import KvTensors
from forebay.exec.paged_model import FlatBatch, PagedModel
from forebay.units import div_ceil

_ENOUGH_NS = 100_000_000
"""A chunk that takes this long tells enough about larger ones."""
_FIRST_CHUNK = 32
_MOST_TOKENS = 512
_SWAPPED_BLOCKS = 8


def measure_costs(paged_model: PagedModel, *, max_chunk_tokens: int) -> Costs:
    """Times one-token steps, ever larger chunks, and copies to the host pool and back.

    `max_chunk_tokens`: no more than a step and a sequence may have. The device pool is left as it
    was; the first slots of the host pool are overwritten. Without a host pool the cost of a swap
    is the default, since nothing is ever swapped.
    """
    pools = paged_model.pools
    block_size = pools.layout.block_size
    most = min(max_chunk_tokens, _MOST_TOKENS, pools.num_blocks * block_size)
    kept = _contents(pools, div_ceil(most, block_size))
    step_ns = _shortest(partial(_compute, paged_model, 1), rounds=3)
    chunk = min(_FIRST_CHUNK, most)
    chunk_ns = _shortest(partial(_compute, paged_model, chunk), rounds=3)
    while chunk < most and chunk_ns < _ENOUGH_NS:
        chunk = min(2 * chunk, most)
        chunk_ns = _shortest(partial(_compute, paged_model, chunk), rounds=2)
    _restore(pools, kept)
    # On a disturbed machine a chunk may seem no dearer than a token: then its mean is the guess.
    per_token = (chunk_ns - step_ns) // max(1, chunk - 1)
    if per_token < 1:
        per_token = max(1, chunk_ns // chunk)
    return Costs(
        prefill_ns_per_token=per_token,
        step_overhead_ns=max(1, step_ns - per_token),
        swap_ns_per_block=_swap_ns_per_block(pools),
    )


def _compute(paged_model: PagedModel, num_tokens: int) -> None:
    """A chunk of one sequence in the first blocks, which samples."""
    block_size = paged_model.pools.layout.block_size
    positions = np.arange(num_tokens, dtype=np.int32)
    paged_model.logits(
        FlatBatch(
            token_ids=np.zeros(num_tokens, np.int32),
            positions=positions,
            token_rows=np.zeros(num_tokens, np.int32),
            slots=positions.astype(np.int64),
            block_tables=np.arange(div_ceil(num_tokens, block_size), dtype=np.int32)[None],
            sample_at=positions[-1:].copy(),
        )
    )


def _swap_ns_per_block(pools: KvTensors) -> int:
    """One block, one way, as part of several."""
    blocks = list(range(min(_SWAPPED_BLOCKS, pools.num_blocks, pools.num_host_blocks)))
    if not blocks:
        return Costs().swap_ns_per_block

    def there_and_back() -> None:
        pools.swap_out(blocks, blocks)
        pools.swap_in(blocks, blocks)
        if pools.device.type == "cuda":
            torch.cuda.synchronize(pools.device)

    return max(1, _shortest(there_and_back, rounds=4) // (2 * len(blocks)))


def _shortest(work: Callable[[], None], *, rounds: int) -> int:
    """The shortest of several times, in nanoseconds; two will do when they take long."""
    times: list[int] = []
    while len(times) < rounds and (len(times) < 2 or sum(times) < _ENOUGH_NS):
        start = time.perf_counter_ns()
        work()
        times.append(time.perf_counter_ns() - start)
    return min(times)


def _contents(pools: KvTensors, num_blocks: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Keys and values of the first blocks, layer by layer."""
    layers = range(pools.layout.num_layers)
    views = [(pools.keys(layer), pools.values(layer)) for layer in layers]
    return [(keys[:num_blocks].clone(), values[:num_blocks].clone()) for keys, values in views]


def _restore(pools: KvTensors, kept: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
    for layer, (keys, values) in enumerate(kept):
        pools.keys(layer)[: len(keys)].copy_(keys)
        pools.values(layer)[: len(values)].copy_(values)
