"""The product kernel: `y = x W^T + b` in float32, each output one chain over the input features.

An output starts at its bias and takes one fused multiply-add per input feature, in order. How many
rows and outputs are computed together decides only the speed: a row's bits depend on nothing else,
neither the other rows nor the threads nor the width of the CPU's registers.

Few rows make a product wait for memory and many make it wait for the multipliers; a decode step
has 8 to 64, where both matter. So a panel of weights is fetched from memory while the one before
it is multiplied with one group of rows after the other (compare BLIS, Van Zee and van de Geijn
2015; the panel is their micro-panel of B, with the roles of the caches kept).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from llvmlite import ir  # type: ignore[import-untyped]  # it ships no types
from numba.core import cgutils, types

from forebay.exec import simd
from forebay.exec.simd import (
    FLOAT,
    VECTOR,
    VECTOR_BYTES,
    CompiledKernel,
    emit_fma,
    emit_prefetch,
    emit_splat,
    fetch_add,
    inlined,
    load_i64,
    pointer,
)

WIDE = simd.has_wide_registers()
PANEL_GROUPS = 3 if WIDE else 1
"""Groups of 16 outputs in a panel of weights."""
_MOST_ROWS = 8 if WIDE else 6
"""Rows in registers at once: 24 of 32 AVX-512 registers hold sums, or 12 of 16 AVX2 ones."""
_BLOCK_ROWS = 256
"""Rows that pass over all weights before the next rows do: they fit the second-level cache."""

_INT64 = ir.IntType(64)


class Arguments(NamedTuple):
    """What one call reads, int64 each: addresses, and sizes in elements."""

    x: int
    x_stride: int
    weights: int
    """Panel by panel, then the groups left over: (depth, outputs) each."""
    bias: int
    y: int
    num_rows: int
    depth: int
    num_groups: int
    """Groups of 16 outputs."""
    counter: int
    """One int64, zero before the call: next unit of work."""


class _Tile(NamedTuple):
    """One step: addresses; strides in bytes."""

    x: int
    x_stride: int
    weights: int
    depth: int
    bias: int
    y: int
    y_stride: int
    ahead: int
    """Where to fetch one cache line for each input feature."""


def _tile(num_rows: int, num_groups: int) -> Any:
    """Multiplies `num_rows` rows with a panel; all its sums stay in registers."""

    def emit(builder: Any, packed: Any) -> None:
        tile = _Tile(*(builder.extract_value(packed, i) for i in range(len(_Tile._fields))))
        sums = _emit_start(builder, tile, num_rows, num_groups)
        with _for_range(builder, tile.depth) as loop:
            _emit_feature(builder, tile, sums, loop.index)
        for row, totals in enumerate(sums):
            start = _at(builder, tile.y, row, tile.y_stride)
            for group, total in enumerate(totals):
                target = pointer(builder, _at(builder, start, group, VECTOR_BYTES), VECTOR)
                builder.store(builder.load(total), target, align=4)

    return simd.define(f"tile_{num_rows}x{num_groups}", 1, types.void, emit)


_for_range: Callable[..., Any] = cgutils.for_range
_allocate: Callable[..., Any] = cgutils.alloca_once_value


def _at(builder: Any, base: Any, index: Any, step: Any) -> Any:
    """The address `index` steps after `base`."""
    index, step = (ir.Constant(_INT64, i) if isinstance(i, int) else i for i in (index, step))
    return builder.add(base, builder.mul(index, step))


def _emit_load(builder: Any, address: Any, kind: Any) -> Any:
    return builder.load(pointer(builder, address, kind), align=4)


def _emit_start(builder: Any, tile: _Tile, num_rows: int, num_groups: int) -> list[list[Any]]:
    """Places for the sums, which LLVM turns into registers, each holding its bias."""
    places = [_at(builder, tile.bias, group, VECTOR_BYTES) for group in range(num_groups)]
    biases = [_emit_load(builder, place, VECTOR) for place in places]
    sums = [[_allocate(builder, bias) for bias in biases] for _ in range(num_rows)]
    for totals in sums:
        for total, bias in zip(totals, biases, strict=True):
            builder.store(bias, total)
    return sums


def _emit_feature(builder: Any, tile: _Tile, sums: list[list[Any]], index: Any) -> None:
    num_groups = len(sums[0])
    emit_prefetch(builder, _at(builder, tile.ahead, index, VECTOR_BYTES))
    line = _at(builder, tile.weights, index, VECTOR_BYTES * num_groups)
    places = [_at(builder, line, group, VECTOR_BYTES) for group in range(num_groups)]
    weights = [_emit_load(builder, place, VECTOR) for place in places]
    for row, totals in enumerate(sums):
        place = _at(builder, _at(builder, tile.x, row, tile.x_stride), index, 4)
        value = emit_splat(builder, _emit_load(builder, place, FLOAT))
        for total, weight in zip(totals, weights, strict=True):
            builder.store(emit_fma(builder, weight, value, builder.load(total)), total)


def _panel(num_groups: int) -> Any:
    """Multiplies any number of rows with a panel of `num_groups`."""
    most, four, two, one = (_tile(rows, num_groups) for rows in (_MOST_ROWS, 4, 2, 1))

    def multiply(tile: _Tile, num_rows: int) -> None:
        x, y, ahead, fetched = tile.x, tile.y, tile.ahead, 0
        while num_rows > 0:
            step = _Tile(
                x, tile.x_stride, tile.weights, tile.depth, tile.bias, y, tile.y_stride, ahead
            )
            done = 1
            if num_rows >= _MOST_ROWS:
                most(step)
                done = _MOST_ROWS
            elif num_rows >= 4:
                four(step)
                done = 4
            elif num_rows >= 2:
                two(step)
                done = 2
            else:
                one(step)
            num_rows -= done
            x += done * tile.x_stride
            y += done * tile.y_stride
            # Each pass fetches a share of the next panel, as long as there is some left.
            fetched += 1
            if fetched < num_groups:
                ahead += VECTOR_BYTES * tile.depth

    return inlined(multiply)


_multiply_panel = _panel(PANEL_GROUPS)
_multiply_group = _panel(1)


@inlined
def _panel_address(call: Arguments, panel: int) -> int:
    """Panels of `PANEL_GROUPS` come first, then single groups."""
    whole = call.num_groups // PANEL_GROUPS
    groups = min(panel, whole) * PANEL_GROUPS + max(panel - whole, 0)
    return call.weights + VECTOR_BYTES * call.depth * groups


@inlined
def _multiply_unit(call: Arguments, unit: int, following: int) -> None:
    """One panel and at most `_BLOCK_ROWS` rows; fetches the panel of the unit after this one."""
    whole = call.num_groups // PANEL_GROUPS
    num_panels = whole + call.num_groups % PANEL_GROUPS
    panel = unit % num_panels
    first = unit // num_panels * _BLOCK_ROWS
    group = min(panel, whole) * PANEL_GROUPS + max(panel - whole, 0)
    y_stride = VECTOR_BYTES * call.num_groups
    tile = _Tile(
        call.x + 4 * first * call.x_stride,
        4 * call.x_stride,
        _panel_address(call, panel),
        call.depth,
        call.bias + VECTOR_BYTES * group,
        call.y + first * y_stride + VECTOR_BYTES * group,
        y_stride,
        _panel_address(call, following % num_panels),
    )
    num_rows = min(_BLOCK_ROWS, call.num_rows - first)
    if panel < whole:
        _multiply_panel(tile, num_rows)
    else:
        _multiply_group(tile, num_rows)


@inlined
def _multiply_units(arguments: int) -> None:
    """One thread's share; it claims its next unit early, to know what to fetch meanwhile."""
    call = Arguments(
        load_i64(arguments),
        load_i64(arguments + 8),
        load_i64(arguments + 16),
        load_i64(arguments + 24),
        load_i64(arguments + 32),
        load_i64(arguments + 40),
        load_i64(arguments + 48),
        load_i64(arguments + 56),
        load_i64(arguments + 64),
    )
    num_blocks = (call.num_rows + _BLOCK_ROWS - 1) // _BLOCK_ROWS
    num_panels = call.num_groups // PANEL_GROUPS + call.num_groups % PANEL_GROUPS
    unit = fetch_add(call.counter, 1)
    while unit < num_blocks * num_panels:
        following = fetch_add(call.counter, 1)
        _multiply_unit(call, unit, following)
        unit = following


def compile_linear() -> CompiledKernel:
    """Compiles the kernel, in a second or two, or loads it from numba's cache."""
    version = simd.source_version(__file__) + PANEL_GROUPS

    def multiply(arguments: int) -> None:
        # In numba's cache key, as in `paged_attention_kernel.compile_attention`.
        if version >= 0:
            _multiply_units(arguments)

    return simd.compile_kernel(multiply)
