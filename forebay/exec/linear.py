"""Matrix products whose rows do not depend on their neighbours, to the last bit.

A BLAS picks its kernel, and with it the order of each sum, by the number of rows: MKL (torch
2.13's `F.linear`) gave other last bits for 1 to 15 and 63 to 192 rows than for 256 on AVX-512, and
for fewer than 33 on AVX2. Our own kernel (`linear_kernel`) has one order. On CPUs that it does not
suit, oneDNN's products over packed weights were bit-equal for 2 to 2,048 rows. Elsewhere products
run in tiles of a fixed number of rows, which always means the same kernel of the BLAS.

Whichever is used, `choose_plan` tests it at start on the machine and the weights at hand.
"""

import ctypes
import enum
import functools
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from forebay.errors import InvariantError
from forebay.exec import linear_kernel
from forebay.exec.simd import LANES, has_fused_multiply_add
from forebay.exec.threads import ParallelRegion


class LinearScheme(enum.Enum):
    """How rows are kept independent of each other."""

    KERNEL = "own kernel"
    """float32 on a CPU with fused multiply-add."""
    PACKED = "oneDNN"
    """oneDNN products over packed weights; float32 on the CPU."""
    FIXED_TILES = "fixed tiles"
    """Any device and dtype: the same product shape over and over, the last one padded."""


@dataclass(frozen=True, slots=True)
class LinearPlan:
    """The scheme in use, and what the start-up check found."""

    scheme: LinearScheme
    rows: int = 1
    """PACKED: fewer rows are padded to this. FIXED_TILES: rows of every product."""
    verified: bool = False
    """True when the check ran and every row was bit-equal."""

    def describe(self) -> str:
        """One line for the start-up report."""
        checked = "checked bit-equal" if self.verified else "NOT bit-equal on this machine"
        return f"{self.scheme.value}, {checked} for any number of rows"

    def suits(self, weight: torch.Tensor) -> bool:
        """Whether products with `weight` can be computed this way at all."""
        if self.scheme is LinearScheme.FIXED_TILES:
            return True
        if weight.device.type != "cpu" or weight.dtype != torch.float32:
            return False
        if self.scheme is LinearScheme.KERNEL:
            return has_fused_multiply_add()
        return bool(torch._C._has_mkldnn)


FIXED_TILE_ROWS = 32
CANDIDATES = (
    LinearPlan(LinearScheme.KERNEL),
    LinearPlan(LinearScheme.PACKED, 2),
    LinearPlan(LinearScheme.PACKED, 16),
    LinearPlan(LinearScheme.FIXED_TILES, FIXED_TILE_ROWS),
)
"""In the order of preference, fastest first."""

_CHECKED_ROWS = (1, 2, 3, 5, 7, 8, 12, 15, 16, 17, 24, 31, 32, 33, 48, 63, 64, 65, 100, 128, 192)
_MANY_ROWS = 384
_WIDE_OUTPUT = 16_384
"""Products this wide are a language model's head: it sees few rows, and each costs more."""


class InvariantLinear:
    """`y = x W^T + b` for any number of rows, each row's bits its own.

    Weights are prepared once; a prepared weight still tells its shape, and nothing else about it
    is for use outside. The plain weight may be dropped.
    """

    def __init__(self, plan: LinearPlan) -> None:
        self.plan = plan
        self._kernel = _KernelProducts() if plan.scheme is LinearScheme.KERNEL else None

    def prepare(self, weight: torch.Tensor) -> torch.Tensor:
        """A copy of `weight` (out, in) in the layout that the plan's products read.

        It lives as long as this object. Raises InvariantError for a weight that the plan does not
        suit.
        """
        if not self.plan.suits(weight):
            raise InvariantError(
                f"{self.plan.scheme.value} cannot multiply {weight.dtype} on {weight.device}: "
                "let choose_plan() see every weight"
            )
        if self._kernel is not None:
            return self._kernel.prepare(weight)
        if self.plan.scheme is LinearScheme.FIXED_TILES:
            return weight.t().contiguous().t()
        packed: torch.Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous())
        return packed

    def __call__(
        self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        """`x` (num_rows, in) times a prepared `weight` (out, in), plus `bias` (out,) if any."""
        if self._kernel is not None:
            return self._kernel.multiply(x, weight, bias)
        if self.plan.scheme is LinearScheme.FIXED_TILES:
            return _in_tiles(x, weight.t(), bias, self.plan.rows)
        num_rows = x.shape[0]
        missing = self.plan.rows - num_rows
        if missing > 0:
            x = F.pad(x, (0, 0, 0, missing))
        y: torch.Tensor = _onednn_product(x.contiguous(), weight, bias, "none", [], "")
        return y[:num_rows] if missing > 0 else y


_onednn_product = torch.ops.mkldnn._linear_pointwise.default


def _in_tiles(
    x: torch.Tensor, transposed: torch.Tensor, bias: torch.Tensor | None, tile: int
) -> torch.Tensor:
    num_rows = x.shape[0]
    x = F.pad(x, (0, 0, 0, -num_rows % tile)).contiguous()
    y = x.new_empty((x.shape[0], transposed.shape[1]))
    for start in range(0, x.shape[0], tile):
        torch.mm(x[start : start + tile], transposed, out=y[start : start + tile])
    if bias is not None:
        y += bias
    return y[:num_rows]


@dataclass(frozen=True, slots=True, eq=False)
class _Packed:
    """A weight in panels, its outputs padded to a multiple of 16."""

    data: torch.Tensor
    out_features: int
    in_features: int
    num_groups: int


@functools.cache
def _region() -> ParallelRegion:
    return ParallelRegion(linear_kernel.compile_linear())


class _KernelProducts:
    """Our own kernel and the weights that are laid out for it."""

    def __init__(self) -> None:
        self._region = _region()
        self._weights: dict[int, _Packed] = {}
        self._no_bias = torch.zeros(0)
        # The call lets other Python threads run while it uses the two records.
        self._lock = threading.Lock()
        self._counter = ctypes.c_int64()
        self._record = (ctypes.c_int64 * len(linear_kernel.Arguments._fields))()

    def prepare(self, weight: torch.Tensor) -> torch.Tensor:
        out_features, in_features = weight.shape
        num_groups = -(-out_features // LANES)
        padded = F.pad(weight, (0, 0, 0, num_groups * LANES - out_features))
        panel = LANES * linear_kernel.PANEL_GROUPS
        whole = num_groups * LANES // panel * panel
        data = torch.empty(padded.numel())
        split = whole * in_features
        data[:split].view(-1, in_features, panel).copy_(
            padded[:whole].view(-1, panel, in_features).transpose(1, 2)
        )
        data[split:].view(-1, in_features, LANES).copy_(
            padded[whole:].view(-1, LANES, in_features).transpose(1, 2)
        )
        if self._no_bias.numel() < num_groups * LANES:
            self._no_bias = torch.zeros(num_groups * LANES)
        self._weights[data.data_ptr()] = _Packed(data, out_features, in_features, num_groups)
        return data[: out_features * in_features].view(out_features, in_features)

    def multiply(
        self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
    ) -> torch.Tensor:
        packed = self._weights.get(weight.data_ptr())
        if packed is None:
            raise InvariantError("this weight was not made by prepare() of the same products")
        num_rows, depth = x.shape
        if depth != packed.in_features or x.dtype != torch.float32:
            raise InvariantError(f"{x.dtype} rows of {depth} for a weight of {weight.shape}")
        if x.stride(1) != 1:
            x = x.contiguous()
        width = packed.num_groups * LANES
        y = torch.empty((num_rows, width))
        bias = self._no_bias if bias is None else _padded_bias(bias, packed, width)
        with self._lock:
            self._counter.value = 0
            arguments = linear_kernel.Arguments(
                x=x.data_ptr(),
                x_stride=x.stride(0),
                weights=packed.data.data_ptr(),
                bias=bias.data_ptr(),
                y=y.data_ptr(),
                num_rows=num_rows,
                depth=depth,
                num_groups=packed.num_groups,
                counter=ctypes.addressof(self._counter),
            )
            self._record[:] = list(arguments)
            self._region(ctypes.addressof(self._record), torch.get_num_threads())
        return y if width == packed.out_features else y[:, : packed.out_features].contiguous()


def _padded_bias(bias: torch.Tensor, packed: _Packed, width: int) -> torch.Tensor:
    if bias.dtype != torch.float32 or bias.shape != (packed.out_features,):
        raise InvariantError(f"a bias of {bias.dtype} {tuple(bias.shape)} for {width} outputs")
    return F.pad(bias, (0, width - packed.out_features)).contiguous()


def choose_plan(
    weights: Iterable[torch.Tensor], candidates: Sequence[LinearPlan] = CANDIDATES
) -> LinearPlan:
    """The first plan that is bit-equal on this machine for every shape among `weights`.

    One weight of each shape is tried, in well under a second for a model of 135M parameters. When
    no plan holds, the last one is returned with `verified` false; the caller says so.
    """
    shapes = {(*weight.shape, weight.dtype, weight.device): weight for weight in weights}
    for plan in candidates:
        if not all(plan.suits(weight) for weight in shapes.values()):
            continue
        if all(is_batch_invariant(weight, plan) for weight in shapes.values()):
            return LinearPlan(plan.scheme, plan.rows, verified=True)
    return LinearPlan(candidates[-1].scheme, candidates[-1].rows)


def is_batch_invariant(weight: torch.Tensor, plan: LinearPlan) -> bool:
    """Whether rows come out the same alone, in small and large batches, and at other places."""
    linear = InvariantLinear(plan)
    prepared = linear.prepare(weight)
    most = 64 if weight.shape[0] >= _WIDE_OUTPUT else _MANY_ROWS
    generator = torch.Generator().manual_seed(0)
    x = torch.randn((most, weight.shape[1]), generator=generator).to(weight)
    expected = linear(x, prepared)
    for num_rows in _CHECKED_ROWS:
        if num_rows >= most:
            break
        first = (5 * num_rows + 3) % (most - num_rows)
        chosen = slice(first, first + num_rows)
        if not torch.equal(linear(x[chosen].clone(), prepared), expected[chosen]):
            return False
    return True
