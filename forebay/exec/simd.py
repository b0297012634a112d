"""Sixteen float32 lanes as one numba value, so that a kernel fixes the order of every sum.

Left to a vectoriser, the order of a reduction depends on trip counts, remainders and the CPU. Here
a kernel names each vector operation itself; LLVM only maps 16 lanes to what the CPU has (one
AVX-512 register, two AVX2 ones), which changes speed but no bit. No compiler is needed: numba
brings LLVM. Addresses are plain integers, as in C; a kernel's caller answers for them.
"""

import math
import platform
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, TypeVar, cast

import numba
from llvmlite import binding as llvm  # type: ignore[import-untyped]  # it ships no types
from llvmlite import ir
from numba.core import cgutils, types
from numba.core.datamodel import models
from numba.extending import intrinsic, register_model

LANES = 16
VECTOR_BYTES = 4 * LANES

FLOAT = ir.FloatType()
_INT = ir.IntType(32)
VECTOR = ir.VectorType(FLOAT, LANES)
_INT_VECTOR = ir.VectorType(_INT, LANES)

Vector = Any
"""A value of 16 float32 lanes inside a kernel."""

_get_or_insert_function = cast(Callable[..., Any], cgutils.get_or_insert_function)
_Function = TypeVar("_Function", bound=Callable[..., Any])


class _VectorType(types.Type):
    def __init__(self) -> None:
        super().__init__(name="f32x16")


_vector = _VectorType()


class _VectorModel(models.PrimitiveModel):
    def __init__(self, data_models: Any, frontend_type: Any) -> None:
        super().__init__(data_models, frontend_type, VECTOR)  # type: ignore[no-untyped-call]  # numba


register_model(_VectorType)(_VectorModel)


def has_fused_multiply_add() -> bool:
    """Without it in hardware, a kernel's `fma` would be a slow call into the C library."""
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return True
    return bool(llvm.get_host_cpu_features().get("fma", False))


def has_wide_registers() -> bool:
    """Whether 16 lanes fit one register, and there are 32 of those (AVX-512)."""
    settings: Any = numba.config
    if settings.CPU_NAME:
        return "+avx512f" in (settings.CPU_FEATURES or "")
    return bool(llvm.get_host_cpu_features().get("avx512f", False))


def inlined(function: _Function) -> _Function:
    """Makes `function` a piece of kernels: compiled with its caller, never called from Python."""
    return cast(_Function, numba.njit(error_model="numpy", forceinline=True)(function))


class CompiledKernel(Protocol):
    """Machine code that takes one address and returns nothing."""

    @property
    def address(self) -> int:
        """Where the code is, for C callers."""

    @property
    def ctypes(self) -> Callable[[int], None]:
        """The code as a Python callable; it runs without the interpreter lock."""


def compile_kernel(function: Callable[[int], None]) -> CompiledKernel:
    """Compiles a kernel that each thread of a parallel region calls with one address.

    The machine code is kept on disk for the next process; where no directory can be written, it
    is compiled in every process.
    """
    signature = types.void(types.int64)
    cfunc = cast(Callable[..., Any], numba.cfunc)
    try:
        kernel = cfunc(signature, cache=True, error_model="numpy")(function)
    except (RuntimeError, OSError):
        kernel = cfunc(signature, error_model="numpy")(function)
    return cast(CompiledKernel, kernel)


def source_version(*paths: str) -> int:
    """A number that changes with the text of this file or of those at `paths`."""
    version = 0
    for path in (__file__, *paths):
        try:
            version = zlib.crc32(Path(path).read_bytes(), version)
        except OSError:
            continue  # Not a file, as inside an archive: numba then has no cache beside it either.
    return version


def _operation(result: Any, emit: Callable[..., Any]) -> Any:
    """An operation of the kernel language: `emit(builder, *operands)` writes its LLVM code."""

    def typing(_: Any, *operand_types: Any) -> Any:
        def codegen(context: Any, builder: Any, _: Any, operands: Any) -> Any:
            values = [
                builder.fptrunc(value, FLOAT) if value.type == ir.DoubleType() else value
                for value in operands
            ]
            emitted = emit(builder, *values)
            return context.get_dummy_value() if result is types.void else emitted

        return result(*operand_types), codegen

    return typing


def pointer(builder: Any, address: Any, pointee: Any) -> Any:
    """LLVM code that makes an integer address a pointer."""
    return builder.inttoptr(address, pointee.as_pointer())


def _load(pointee: Any, align: int) -> Callable[[Any, Any], Any]:
    def emit(builder: Any, address: Any) -> Any:
        return builder.load(pointer(builder, address, pointee), align=align)

    return emit


def _store(pointee: Any, align: int) -> Callable[[Any, Any, Any], Any]:
    def emit(builder: Any, address: Any, value: Any) -> Any:
        if isinstance(pointee, ir.IntType) and value.type.width > pointee.width:
            value = builder.trunc(value, pointee)
        return builder.store(value, pointer(builder, address, pointee), align=align)

    return emit


def _constant(value: float) -> Any:
    return ir.Constant(VECTOR, [value] * LANES)


def _constant_i32(value: int) -> Any:
    return ir.Constant(_INT_VECTOR, [value] * LANES)


def emit_splat(builder: Any, value: Any) -> Any:
    """LLVM code of a vector that holds `value` in every lane."""
    kind = ir.VectorType(value.type, LANES)
    first = builder.insert_element(ir.Constant(kind, ir.Undefined), value, ir.Constant(_INT, 0))
    return builder.shuffle_vector(first, ir.Constant(kind, ir.Undefined), _constant_i32(0))


def emit_fma(builder: Any, a: Any, b: Any, c: Any) -> Any:
    """LLVM code of `a * b + c`, rounded once."""
    name = "llvm.fma.v16f32" if a.type == VECTOR else "llvm.fma.f32"
    kind = ir.FunctionType(a.type, [a.type] * 3)
    return builder.call(_get_or_insert_function(builder.module, kind, name), [a, b, c])


def _emit_max(builder: Any, a: Any, b: Any) -> Any:
    return builder.select(builder.fcmp_ordered(">", a, b), a, b)


def _emit_keep_first(builder: Any, vector: Any, count: Any, otherwise: Any) -> Any:
    lane = ir.Constant(_INT_VECTOR, list(range(LANES)))
    limit = emit_splat(builder, builder.trunc(count, _INT))
    keep = builder.icmp_signed("<", lane, limit)
    return builder.select(keep, vector, emit_splat(builder, otherwise))


def _emit_fold(combine: Callable[[Any, Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Folds lanes in halves, 16 to 8 to 4 to 2 to 1: one order, whatever the CPU."""

    def emit(builder: Any, vector: Any) -> Any:
        width = LANES
        while width > 1:
            width //= 2
            undefined = ir.Constant(vector.type, ir.Undefined)
            halves = [
                builder.shuffle_vector(
                    vector,
                    undefined,
                    ir.Constant(ir.VectorType(_INT, width), list(range(start, start + width))),
                )
                for start in (0, width)
            ]
            vector = combine(builder, *halves)
        return builder.extract_element(vector, ir.Constant(_INT, 0))

    return emit


_TAYLOR = tuple(math.log(2) ** power / math.factorial(power) for power in range(8))
"""2**r = sum of (r ln 2)**n / n!. For |r| <= 1/2 the terms left out are below 2**-27."""


def _emit_exp2(builder: Any, exponent: Any) -> Any:
    """2**exponent for exponents <= 0; below -126, where float32 ends, it answers 2**-126."""
    clamped = _emit_max(builder, exponent, _constant(-126.0))
    # Adding and taking away 1.5 * 2**23 rounds to the nearest integer, ties to even.
    magic = _constant(12582912.0)
    shifted = builder.fadd(clamped, magic)
    rest = builder.fsub(clamped, builder.fsub(shifted, magic))
    power = _constant(_TAYLOR[-1])
    for coefficient in reversed(_TAYLOR[:-1]):
        power = emit_fma(builder, power, rest, _constant(coefficient))
    whole = builder.sub(builder.bitcast(shifted, _INT_VECTOR), _constant_i32(0x4B400000))
    bits = builder.shl(whole, _constant_i32(23))
    return builder.bitcast(builder.add(builder.bitcast(power, _INT_VECTOR), bits), VECTOR)


def _emit_fetch_add(builder: Any, address: Any, value: Any) -> Any:
    place = pointer(builder, address, ir.IntType(64))
    return builder.atomic_rmw("add", place, value, "monotonic")


def emit_prefetch(builder: Any, address: Any) -> Any:
    """Asks for a line to be read soon; an address that is not mapped does no harm."""
    kind = ir.FunctionType(ir.VoidType(), [ir.IntType(8).as_pointer()] + [_INT] * 3)
    name = "llvm.prefetch.p0"
    function = _get_or_insert_function(builder.module, kind, name)
    for_read, keep_close, data = (ir.Constant(_INT, value) for value in (0, 3, 1))
    place = pointer(builder, address, ir.IntType(8))
    return builder.call(function, [place, for_read, keep_close, data])


def define(name: str, arity: int, result: Any, emit: Callable[..., Any]) -> Any:
    """A new word of the kernel language: `emit(builder, *operands)` writes its LLVM code."""
    # numba reads an intrinsic's parameter list, so each arity needs a function of its own.
    typing = _operation(result, emit)
    wrappers: dict[int, Callable[..., Any]] = {
        1: lambda typingctx, a: typing(typingctx, a),
        2: lambda typingctx, a, b: typing(typingctx, a, b),
        3: lambda typingctx, a, b, c: typing(typingctx, a, b, c),
    }
    wrapper = wrappers[arity]
    wrapper.__name__ = name
    wrapper.__qualname__ = name
    return intrinsic(wrapper)


load = define("load", 1, _vector, _load(VECTOR, 4))
store = define("store", 2, types.void, _store(VECTOR, 4))
load_f32 = define("load_f32", 1, types.float32, _load(FLOAT, 4))
store_f32 = define("store_f32", 2, types.void, _store(FLOAT, 4))
load_i32 = define("load_i32", 1, types.int32, _load(_INT, 4))
store_i32 = define("store_i32", 2, types.void, _store(_INT, 4))
store_i64 = define("store_i64", 2, types.void, _store(ir.IntType(64), 4))
load_i64 = define("load_i64", 1, types.int64, _load(ir.IntType(64), 8))
fetch_add = define("fetch_add", 2, types.int64, _emit_fetch_add)
prefetch = define("prefetch", 1, types.void, emit_prefetch)

splat = define("splat", 1, _vector, emit_splat)
add = define("add", 2, _vector, lambda builder, a, b: builder.fadd(a, b))
sub = define("sub", 2, _vector, lambda builder, a, b: builder.fsub(a, b))
mul = define("mul", 2, _vector, lambda builder, a, b: builder.fmul(a, b))
div = define("div", 2, _vector, lambda builder, a, b: builder.fdiv(a, b))
fma = define("fma", 3, _vector, emit_fma)
maximum = define("maximum", 2, _vector, _emit_max)
exp2 = define("exp2", 1, _vector, _emit_exp2)
keep_first = define("keep_first", 3, _vector, _emit_keep_first)
sum_lanes = define(
    "sum_lanes", 1, types.float32, _emit_fold(lambda builder, a, b: builder.fadd(a, b))
)
max_lanes = define("max_lanes", 1, types.float32, _emit_fold(_emit_max))
fma_f32 = define("fma_f32", 3, types.float32, emit_fma)
