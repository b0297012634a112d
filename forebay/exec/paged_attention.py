"""Attention over block tables: keys and values are read where they lie, nothing is padded.

On the CPU a query's result is the same to the last bit whatever else is in the batch, however its
prompt was cut into chunks, wherever its blocks lie and however many threads run
(`paged_attention_kernel`). Other devices and types take the plain torch path below.
"""

import functools
import math
import threading
from dataclasses import dataclass

import numpy as np
import torch

from forebay.errors import InvariantError
from forebay.exec.attention_call import Arguments, scratch_bytes
from forebay.exec.paged_attention_kernel import MAX_TILE_ROWS, compile_attention
from forebay.exec.threads import ParallelRegion

_UNITS_WANTED = 32
"""Tiles of tokens to aim for, so that all threads stay busy to the end."""


def paged_attention(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_tables: torch.Tensor,
    token_rows: torch.Tensor,
    positions: torch.Tensor,
    scale: float,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Lets token `t` attend to positions 0 to `positions[t]` of its row; answers (T, Hq, D).

    `q` is (T, Hq, D), and may be a slice of a wider product. The caches are `KvTensors.k` and `.v`
    of one layer, (num_blocks, Hkv, block_size, D); `block_tables` is (R, max_blocks), `token_rows`
    and `positions` are (T,), all int32. Keys and values of every position attended to have been
    written before. Tokens of one row are best kept together.
    """
    if out is None:
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    inputs = Inputs(q, k_cache, v_cache, block_tables, token_rows, positions, scale)
    if q.shape[0] == 0:
        return out
    if q.device.type != "cpu" or q.dtype != torch.float32:
        return attend_with_torch(inputs, out)
    _check(inputs, out)
    kernel = _kernel()
    with kernel.lock:
        kernel.run(inputs, out)
    return out


@dataclass(frozen=True, slots=True)
class Inputs:
    """What `paged_attention` was given."""

    q: torch.Tensor
    k_cache: torch.Tensor
    v_cache: torch.Tensor
    block_tables: torch.Tensor
    token_rows: torch.Tensor
    positions: torch.Tensor
    scale: float


def _check(inputs: Inputs, out: torch.Tensor) -> None:
    """The kernel trusts addresses, so what it is given must be what it expects."""
    q, keys, values = inputs.q, inputs.k_cache, inputs.v_cache
    _, num_heads, head_dim = q.shape
    _, num_kv_heads, block_size, _ = keys.shape
    block = block_size * head_dim
    indices = (inputs.block_tables, inputs.token_rows, inputs.positions)
    checks = (
        (any(t.dtype != q.dtype for t in (keys, values, out)), "types differ"),
        (keys.shape != values.shape, "key and value caches differ in shape"),
        (keys.shape[3] != head_dim, "head_dim of queries and keys differs"),
        (num_heads % num_kv_heads != 0, "query heads are no multiple of key-value heads"),
        (q.stride()[1:] != (head_dim, 1), "the heads of a query must be contiguous"),
        (keys.stride()[1:] != (block, 1, block_size), "keys must lie dimension-major"),
        (values.stride()[1:] != (block, head_dim, 1), "values must lie key-major"),
        (keys.stride(0) != values.stride(0), "caches must share their block stride"),
        (out.shape != q.shape or not out.is_contiguous(), "`out` must be contiguous, like q"),
        (
            any(i.dtype != torch.int32 or not i.is_contiguous() for i in indices),
            "block tables, rows and positions must be contiguous int32",
        ),
    )
    faults = [fault for wrong, fault in checks if wrong]
    if faults:
        raise InvariantError("paged attention got unfit tensors: " + "; ".join(faults))


class CpuKernel:
    """The compiled kernel, its working memory and its argument record."""

    def __init__(self) -> None:
        self._region = ParallelRegion(compile_attention())
        # The call below lets other Python threads run while it uses this memory.
        self.lock = threading.Lock()
        self._scratch = np.zeros(0, dtype=np.uint8)
        self._record = np.zeros(len(Arguments._fields), dtype=np.int64)
        self._counters = np.zeros(2, dtype=np.int64)
        self._scale = np.zeros(1, dtype=np.float32)

    def run(self, inputs: Inputs, out: torch.Tensor) -> None:
        """Computes into `out`; hold `lock` meanwhile."""
        q, k_cache, v_cache = inputs.q, inputs.k_cache, inputs.v_cache
        num_tokens, num_heads, head_dim = q.shape
        num_kv_heads, block_size = k_cache.shape[1:3]
        group = num_heads // num_kv_heads
        tile_tokens = max(1, min(MAX_TILE_ROWS // group, num_tokens // _UNITS_WANTED))
        num_threads = torch.get_num_threads()
        scratch_stride = scratch_bytes(tile_tokens * group, head_dim)
        if self._scratch.size < scratch_stride * num_threads:
            self._scratch = np.zeros(scratch_stride * num_threads, dtype=np.uint8)
        self._counters[:] = 0
        self._scale[0] = inputs.scale * math.log2(math.e)
        self._record[:] = Arguments(
            query=q.data_ptr(),
            query_stride=4 * q.stride(0),
            keys=k_cache.data_ptr(),
            values=v_cache.data_ptr(),
            block_stride=4 * k_cache.stride(0),
            tables=inputs.block_tables.data_ptr(),
            table_stride=4 * inputs.block_tables.stride(0),
            token_rows=inputs.token_rows.data_ptr(),
            positions=inputs.positions.data_ptr(),
            out=out.data_ptr(),
            scratch=self._scratch.ctypes.data,
            scratch_stride=scratch_stride,
            counters=self._counters.ctypes.data,
            scale=self._scale.ctypes.data,
            num_tokens=num_tokens,
            tile_tokens=tile_tokens,
            num_kv_heads=num_kv_heads,
            group=group,
            head_dim=head_dim,
            block_size=block_size,
        )
        self._region(self._record.ctypes.data, num_threads)


@functools.cache
def _kernel() -> CpuKernel:
    return CpuKernel()


def compile_kernel() -> None:
    """Compiles the CPU kernel, or loads it from numba's cache, so that no request waits for it."""
    _kernel()


def attend_with_torch(inputs: Inputs, out: torch.Tensor) -> torch.Tensor:
    """Row by row with torch's operators, on any device; gathers one row's blocks at a time."""
    q, k_cache, v_cache = inputs.q, inputs.k_cache, inputs.v_cache
    num_kv_heads, block_size, head_dim = k_cache.shape[1:]
    group = q.shape[1] // num_kv_heads
    for row in torch.unique(inputs.token_rows).tolist():
        chosen = torch.nonzero(inputs.token_rows == row).squeeze(1)
        last = inputs.positions[chosen].long()
        length = int(last.max()) + 1
        blocks = inputs.block_tables[row, : -(-length // block_size)].long()
        keys = k_cache[blocks].transpose(0, 1).reshape(num_kv_heads, -1, head_dim)[:, :length]
        values = v_cache[blocks].transpose(0, 1).reshape(num_kv_heads, -1, head_dim)[:, :length]
        queries = q[chosen].view(-1, num_kv_heads, group, head_dim)
        scores = torch.einsum("thgd,hkd->thgk", queries, keys).float() * inputs.scale
        hidden = torch.arange(length, device=q.device) > last[:, None]
        scores.masked_fill_(hidden[:, None, None, :], -math.inf)
        weights = scores.softmax(dim=-1).to(values.dtype)
        mixed = torch.einsum("thgk,hkd->thgd", weights, values)
        out[chosen] = mixed.reshape(-1, q.shape[1], head_dim)
    return out
