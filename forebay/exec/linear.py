"""Matrix products whose rows do not depend on their neighbours, to the last bit.

A BLAS picks its kernel, and with it the order of each sum, by the number of rows: MKL (torch
2.13's `F.linear`) gives other last bits for 1 to 15 and 63 to 192 rows than for 256 on AVX-512,
and for fewer than 33 on AVX2. oneDNN's products over weights packed beforehand were bit-equal for
every number of rows from 2 to 2,048 on both, and are no slower. That is checked at start on the
machine and the weights at hand; where it fails, products run in tiles of a fixed number of rows,
which always means the same kernel.
"""

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from forebay.errors import InvariantError


class LinearScheme(enum.Enum):
    """How rows are kept independent of each other."""

    PACKED = "packed"
    """oneDNN products over packed weights; float32 on the CPU."""
    FIXED_TILES = "fixed tiles"
    """Any device and dtype: the same product shape over and over, the last one padded."""


@dataclass(frozen=True, slots=True)
class LinearPlan:
    """The scheme in use, and what the start-up check found."""

    scheme: LinearScheme
    rows: int
    """PACKED: fewer rows are padded to this. FIXED_TILES: rows of every product."""
    verified: bool = False
    """True when the check ran and every row was bit-equal."""

    def describe(self) -> str:
        """One line for the start-up report."""
        how = "at least" if self.scheme is LinearScheme.PACKED else "always"
        checked = "checked bit-equal" if self.verified else "NOT bit-equal on this machine"
        return f"{self.scheme.value}, {how} {self.rows} rows a product, {checked}"


FIXED_TILE_ROWS = 32
CANDIDATES = (
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

    __slots__ = ("plan",)

    def __init__(self, plan: LinearPlan) -> None:
        self.plan = plan

    def prepare(self, weight: torch.Tensor) -> torch.Tensor:
        """A copy of `weight` (out, in) in the layout that the plan's products read.

        Raises InvariantError where PACKED is asked for anything but float32 on the CPU.
        """
        if self.plan.scheme is LinearScheme.FIXED_TILES:
            return weight.t().contiguous().t()
        if not can_pack(weight):
            raise InvariantError("packed products need float32 on the CPU: see choose_plan()")
        packed: torch.Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous())
        return packed

    def __call__(
        self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        """`x` (num_rows, in) times a prepared `weight` (out, in), plus `bias` (out,) if any."""
        if self.plan.scheme is LinearScheme.FIXED_TILES:
            return _in_tiles(x, weight.t(), bias, self.plan.rows)
        num_rows = x.shape[0]
        missing = self.plan.rows - num_rows
        if missing > 0:
            x = F.pad(x, (0, 0, 0, missing))
        y: torch.Tensor = _packed_product(x.contiguous(), weight, bias, "none", [], "")
        return y[:num_rows] if missing > 0 else y


_packed_product = torch.ops.mkldnn._linear_pointwise.default


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


def can_pack(weight: torch.Tensor) -> bool:
    """Whether oneDNN can pack `weight` for float32 products."""
    return (
        weight.device.type == "cpu" and weight.dtype == torch.float32 and bool(torch._C._has_mkldnn)
    )


def choose_plan(
    weights: Iterable[torch.Tensor], candidates: Sequence[LinearPlan] = CANDIDATES
) -> LinearPlan:
    """The first plan that is bit-equal on this machine for every shape among `weights`.

    One weight of each shape is tried, in well under a second for a model of 135M parameters. When
    no plan holds, the last one is returned with `verified` false; the caller says so.
    """
    shapes = {(*weight.shape, weight.dtype, weight.device): weight for weight in weights}
    for plan in candidates:
        packs = plan.scheme is LinearScheme.PACKED
        if packs and not all(can_pack(weight) for weight in shapes.values()):
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
