"""What a decoder does between two products, each in one pass over memory where the CPU can.

On a CPU in float32 our own kernel computes; otherwise torch does, in several passes. Which it is
depends on device, type and widths alone, never on the rows, so a row has the same bits always.
"""

import ctypes
import functools
import threading
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from forebay.errors import InvariantError
from forebay.exec import fused_kernel, rope
from forebay.exec.fused_kernel import NUM_FIELDS, AddNorm, Operation, Rotate, SiluMul, Write, fits
from forebay.exec.simd import LANES, has_fused_multiply_add
from forebay.exec.threads import ParallelRegion

_ELEMENTS_FOR_THREADS = 8_192
"""Fewer elements are done before a second thread has begun."""


def add_norm_(hidden: Tensor, delta: Tensor | None, weight: Tensor, eps: float) -> Tensor:
    """`hidden += delta`, then its RMS norm times `weight`: (num_rows, width), as `hidden`."""
    if not (_suits(hidden) and fits(hidden.shape[1]) and hidden.is_contiguous()):
        if delta is not None:
            hidden += delta
        return F.rms_norm(hidden, hidden.shape[-1:], weight, eps)
    num_rows, width = hidden.shape
    out = torch.empty_like(hidden)
    weight = weight.contiguous()
    if delta is not None:
        delta = _float32(delta, hidden.shape)
    call = AddNorm(
        rows=hidden.data_ptr(),
        delta=0 if delta is None else delta.data_ptr(),
        weight=_float32(weight, (width,)).data_ptr(),
        out=out.data_ptr(),
        width=width,
        eps=ctypes.addressof(_constant(eps)),
    )
    _kernel().run(Operation.ADD_NORM, call, num_rows, width)
    return out


def silu_mul(fused: Tensor) -> Tensor:
    """`silu(gate) * up` (num_rows, width) of `fused` (num_rows, 2 * width): gate, then up."""
    num_rows, width = fused.shape[0], fused.shape[1] // 2
    if not (_suits(fused) and fits(width)):
        return silu(fused[:, :width]).mul_(fused[:, width:])
    if fused.stride(1) != 1:
        fused = fused.contiguous()
    out = torch.empty((num_rows, width))
    call = SiluMul(
        fused=fused.data_ptr(),
        fused_stride=4 * fused.stride(0),
        out=out.data_ptr(),
        width=width,
    )
    _kernel().run(Operation.SILU_MUL, call, num_rows, 2 * width)
    return out


def silu(rows: Tensor) -> Tensor:
    """`rows` times its sigmoid by torch's operators, each element's bits independent of its place.

    On a CPU, torch 2.13's own silu computes the elements left over from whole vectors by another
    exponential, and which those are depends on the number of rows and threads; `exp` does not.
    """
    if rows.device.type != "cpu" or rows.dtype != torch.float32:
        return F.silu(rows)
    denominator = torch.neg(rows).exp_().add_(1.0)
    return torch.div(rows, denominator, out=denominator)


def rotate_(heads: Tensor, cos: Tensor, sin: Tensor) -> None:
    """`rope.rotate_` to the last bit: `heads` (num_rows, num_heads, head_dim) in place."""
    num_rows, num_heads, head_dim = heads.shape
    half = head_dim // 2
    whole = fits(half) and heads.stride()[1:] == (head_dim, 1)
    if not (whole and _suits(heads) and cos.is_contiguous() and sin.is_contiguous()):
        rope.rotate_(heads, cos, sin)
        return
    call = Rotate(
        heads=heads.data_ptr(),
        row_stride=4 * heads.stride(0),
        num_heads=num_heads,
        half=half,
        cos=_float32(cos, (num_rows, 1, half)).data_ptr(),
        sin=_float32(sin, (num_rows, 1, half)).data_ptr(),
    )
    _kernel().run(Operation.ROTATE, call, num_rows, num_heads * head_dim)


def write_kv(keys: Tensor, values: Tensor, k: Tensor, v: Tensor, slots: Tensor) -> bool:
    """Puts `k` and `v` (T, num_kv_heads, head_dim) in `slots` (T,); false: it cannot, do it else.

    `keys` and `values` are one layer's views (num_blocks, num_kv_heads, block_size, head_dim).
    Raises InvariantError for a slot outside, after the other rows are written.
    """
    num_blocks, num_kv_heads, block_size, head_dim = keys.shape
    block = block_size * head_dim
    dense = (head_dim, 1)
    able = (
        all(_suits(tensor) for tensor in (keys, values, k, v))
        and fits(head_dim)
        and keys.stride()[1:] == (block, 1, block_size)
        and values.stride() == (keys.stride(0), block, *dense)
        and k.stride()[1:] == dense
        and v.stride()[1:] == dense
        and slots.is_contiguous()
    )
    if not able:
        return False
    shape = (len(slots), num_kv_heads, head_dim)
    if k.shape != shape or v.shape != shape or slots.dtype != torch.int64:
        raise InvariantError(f"keys {k.shape}, values {v.shape} for {slots.dtype} slots of {shape}")
    call = Write(
        k=k.data_ptr(),
        k_stride=4 * k.stride(0),
        v=v.data_ptr(),
        v_stride=4 * v.stride(0),
        keys=keys.data_ptr(),
        values=values.data_ptr(),
        block_stride=4 * keys.stride(0),
        slots=slots.data_ptr(),
        num_blocks=num_blocks,
        block_size=block_size,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
    )
    # Each element of a key lies in a cache line of its own, 16 elements long.
    width = (LANES + 1) * num_kv_heads * head_dim
    faults = _kernel().run(Operation.WRITE, call, len(slots), width)
    if faults > 0:
        raise InvariantError(f"{faults} slots lie outside the pool of {num_blocks} blocks")
    return True


class _FusedKernel:
    """The compiled kernel and its argument record."""

    def __init__(self) -> None:
        self._region = ParallelRegion(fused_kernel.compile_fused())
        # The call lets other Python threads run while it uses the record.
        self._lock = threading.Lock()
        self._counters = (ctypes.c_int64 * 2)()
        self._record = (ctypes.c_int64 * NUM_FIELDS)()
        self._record[1] = ctypes.addressof(self._counters)
        self._address = ctypes.addressof(self._record)

    def run(self, operation: Operation, call: Sequence[int], num_rows: int, width: int) -> int:
        """Computes `num_rows` rows of `width` elements; the number of rows that it refused."""
        num_threads = 1
        if num_rows * width >= _ELEMENTS_FOR_THREADS:
            num_threads = torch.get_num_threads()
        with self._lock:
            self._counters[0] = 0
            self._counters[1] = 0
            self._record[0] = operation
            self._record[2] = num_rows
            self._record[3 : 3 + len(call)] = list(call)
            self._region(self._address, num_threads)
            return self._counters[1]


@functools.cache
def _kernel() -> _FusedKernel:
    return _FusedKernel()


@functools.cache
def _constant(value: float) -> ctypes.c_float:
    """A float32 that stays where it is."""
    return ctypes.c_float(value)


_HAS_FMA = has_fused_multiply_add()


def _suits(tensor: Tensor) -> bool:
    return _HAS_FMA and tensor.dtype == torch.float32 and tensor.is_cpu


def _float32(tensor: Tensor, shape: Sequence[int]) -> Tensor:
    """Contiguous, for the kernel trusts addresses."""
    if tensor.dtype != torch.float32 or not tensor.is_cpu or tensor.shape != tuple(shape):
        raise InvariantError(f"{tensor.dtype} {tuple(tensor.shape)}: should be {tuple(shape)}")
    return tensor if tensor.is_contiguous() else tensor.contiguous()
