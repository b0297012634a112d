"""The small operations between two products, each one pass over its rows, in float32.

Every row is computed by one thread, element by element or in one fixed order, in whole vectors of
16: its bits depend neither on the number of rows, nor on its place, nor on the threads.
"""

import enum
import math
from typing import Any, NamedTuple

import numpy as np

from forebay.exec import simd
from forebay.exec.simd import (
    LANES,
    VECTOR_BYTES,
    CompiledKernel,
    Vector,
    fetch_add,
    inlined,
    load_f32,
    load_i64,
    prefetch,
    store_f32,
)

# numba's typing of these words is not Python's.
load: Any = simd.load
store: Any = simd.store
_UNIT_ROWS = 8
"""Rows that a thread claims at once."""


class Operation(enum.IntEnum):
    """What a call computes; the first number of its record."""

    ADD_NORM = 0
    SILU_MUL = 1
    ROTATE = 2
    WRITE = 3


_ADD_NORM, _SILU_MUL, _ROTATE = (int(operation) for operation in tuple(Operation)[:3])

NUM_FIELDS = 16
"""int64 in a record: operation, address of the counters, `num_rows`, and the fields below."""


class AddNorm(NamedTuple):
    """`rows += delta; out = rms_norm(rows) * weight`; all contiguous, `width` of 16s."""

    rows: int
    delta: int
    """0: nothing is added."""
    weight: int
    out: int
    width: int
    eps: int
    """Address of one float32."""


class SiluMul(NamedTuple):
    """`out = silu(gate) * up`; a row of `fused` is gate, then up, `width` each."""

    fused: int
    fused_stride: int
    """Bytes, as all strides."""
    out: int
    width: int


class Rotate(NamedTuple):
    """Rotates the heads of each row in place; `cos` and `sin` are (num_rows, half)."""

    heads: int
    row_stride: int
    num_heads: int
    half: int
    cos: int
    sin: int


class Write(NamedTuple):
    """Puts keys and values in their slots; counts in the second counter what has no place."""

    k: int
    k_stride: int
    v: int
    v_stride: int
    keys: int
    values: int
    block_stride: int
    slots: int
    num_blocks: int
    block_size: int
    num_kv_heads: int
    head_dim: int


@inlined
def _add_norm(call: AddNorm, row: int) -> None:
    start = 4 * row * call.width
    rows = call.rows + start
    squares = simd.splat(0.0)
    for place in range(0, 4 * call.width, VECTOR_BYTES):
        value = load(rows + place)
        if call.delta != 0:
            value = simd.add(value, load(call.delta + start + place))
            store(rows + place, value)
        squares = simd.fma(value, value, squares)
    mean = simd.sum_lanes(squares) / call.width
    factor = simd.splat(1.0 / math.sqrt(mean + load_f32(call.eps)))
    for place in range(0, 4 * call.width, VECTOR_BYTES):
        value = simd.mul(load(rows + place), factor)
        store(call.out + start + place, simd.mul(value, load(call.weight + place)))


_LOG2_E = float(np.float32(math.log2(math.e)))
_LOG2_E_REST = math.log2(math.e) - _LOG2_E
_LOWEST = -87.0
"""Below, where exp would leave float32's normal range, it stays at exp(-87) = 1e-38."""


@inlined
def _exp(exponent: Vector) -> Vector:
    """exp for exponents from -87 to 0, with the rounding error of `exponent * log2(e)` made up."""
    log2_e = simd.splat(_LOG2_E)
    scaled = simd.mul(exponent, log2_e)
    rest = simd.fma(exponent, log2_e, simd.sub(simd.splat(0.0), scaled))
    rest = simd.fma(exponent, simd.splat(_LOG2_E_REST), rest)
    power = simd.exp2(scaled)
    return simd.fma(power, simd.mul(rest, simd.splat(math.log(2))), power)


@inlined
def _silu_mul(call: SiluMul, row: int) -> None:
    gates = call.fused + row * call.fused_stride
    ups = gates + 4 * call.width
    out = call.out + 4 * row * call.width
    zero = simd.splat(0.0)
    for place in range(0, 4 * call.width, VECTOR_BYTES):
        gate = load(gates + place)
        # `maximum` answers its second operand when one is not a number, so those come through.
        positive = simd.maximum(zero, gate)
        negative = simd.sub(zero, simd.maximum(zero, simd.sub(zero, gate)))
        size = simd.sub(positive, negative)
        power = _exp(simd.maximum(simd.sub(zero, size), simd.splat(_LOWEST)))
        # One of both is zero: x / (1 + exp(-x)), or x exp(x) / (1 + exp(x)).
        dividend = simd.fma(negative, power, positive)
        value = simd.div(dividend, simd.add(simd.splat(1.0), power))
        store(out + place, simd.mul(value, load(ups + place)))


@inlined
def _rotate(call: Rotate, row: int) -> None:
    angles = 4 * row * call.half
    for place in range(0, 4 * call.half, VECTOR_BYTES):
        cos = load(call.cos + angles + place)
        sin = load(call.sin + angles + place)
        for head in range(call.num_heads):
            first_at = call.heads + row * call.row_stride + 8 * head * call.half + place
            second_at = first_at + 4 * call.half
            first = load(first_at)
            second = load(second_at)
            # Rounded as `rope.rotate_` rounds, so without fused multiply-add.
            store(first_at, simd.sub(simd.mul(first, cos), simd.mul(second, sin)))
            store(second_at, simd.add(simd.mul(second, cos), simd.mul(first, sin)))


@inlined
def _write(call: Write, row: int, faults: int) -> None:
    slot = load_i64(call.slots + 8 * row)
    if slot < 0 or slot >= call.num_blocks * call.block_size:
        fetch_add(faults, 1)
        return
    block = slot // call.block_size
    offset = slot - block * call.block_size
    head_bytes = 4 * call.head_dim
    for head in range(call.num_kv_heads):
        start = block * call.block_stride + head * call.block_size * head_bytes
        source = call.k + row * call.k_stride + head * head_bytes
        target = call.keys + start + 4 * offset
        # A store waits for its line; asked for before, many lines are on their way together.
        for index in range(call.head_dim):
            prefetch(target + 4 * index * call.block_size)
        for index in range(call.head_dim):
            store_f32(target + 4 * index * call.block_size, load_f32(source + 4 * index))
        source = call.v + row * call.v_stride + head * head_bytes
        target = call.values + start + offset * head_bytes
        for place in range(0, head_bytes, VECTOR_BYTES):
            store(target + place, load(source + place))


@inlined
def _compute_row(operation: int, fields: int, row: int, faults: int) -> None:
    a, b = load_i64(fields), load_i64(fields + 8)
    c, d = load_i64(fields + 16), load_i64(fields + 24)
    e, f = load_i64(fields + 32), load_i64(fields + 40)
    if operation == _ADD_NORM:
        _add_norm(AddNorm(a, b, c, d, e, f), row)
    elif operation == _SILU_MUL:
        _silu_mul(SiluMul(a, b, c, d), row)
    elif operation == _ROTATE:
        _rotate(Rotate(a, b, c, d, e, f), row)
    else:
        g, h = load_i64(fields + 48), load_i64(fields + 56)
        i, j = load_i64(fields + 64), load_i64(fields + 72)
        k, m = load_i64(fields + 80), load_i64(fields + 88)
        _write(Write(a, b, c, d, e, f, g, h, i, j, k, m), row, faults)


@inlined
def _compute_units(record: int) -> None:
    """One thread's share of the rows."""
    operation = load_i64(record)
    counters = load_i64(record + 8)
    num_rows = load_i64(record + 16)
    first = fetch_add(counters, _UNIT_ROWS)
    while first < num_rows:
        for row in range(first, min(first + _UNIT_ROWS, num_rows)):
            _compute_row(operation, record + 24, row, counters + 8)
        first = fetch_add(counters, _UNIT_ROWS)


def compile_fused() -> CompiledKernel:
    """Compiles the kernel, in a second or two, or loads it from numba's cache."""
    version = simd.source_version(__file__)

    def compute(record: int) -> None:
        # In numba's cache key, as in `paged_attention_kernel.compile_attention`.
        if version >= 0:
            _compute_units(record)

    return simd.compile_kernel(compute)


def fits(*widths: int) -> bool:
    """Whether rows of these widths are whole vectors."""
    return all(width % LANES == 0 for width in widths)
