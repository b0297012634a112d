import pytest
import torch
import torch.nn.functional as F

from forebay.errors import InvariantError
from forebay.exec.linear import (
    CANDIDATES,
    FIXED_TILE_ROWS,
    InvariantLinear,
    LinearPlan,
    LinearScheme,
    can_pack,
    choose_plan,
    is_batch_invariant,
)

PACKED = CANDIDATES[0]
TILES = CANDIDATES[-1]


@pytest.mark.parametrize("plan", [PACKED, TILES], ids=lambda plan: plan.scheme.value)
@pytest.mark.parametrize(("width", "height"), [(64, 192), (176, 40), (37, 5)])
@pytest.mark.parametrize("has_bias", [False, True])
def test_products_are_those_of_plain_torch(
    plan: LinearPlan, width: int, height: int, has_bias: bool
) -> None:
    linear = InvariantLinear(plan)
    weight = torch.randn(height, width)
    bias = torch.randn(height) if has_bias else None
    prepared = linear.prepare(weight)
    assert prepared.shape == weight.shape
    for num_rows in (0, 1, 2, 31, 33, 70):
        x = torch.randn(num_rows, width)
        torch.testing.assert_close(linear(x, prepared, bias), F.linear(x, weight, bias))


@pytest.mark.parametrize("plan", [PACKED, TILES], ids=lambda plan: plan.scheme.value)
@pytest.mark.parametrize(("width", "height"), [(64, 192), (176, 64), (1536, 64)])
def test_a_row_is_bit_equal_alone_in_any_batch_and_at_any_place(
    plan: LinearPlan, width: int, height: int
) -> None:
    linear = InvariantLinear(plan)
    prepared = linear.prepare(torch.randn(height, width))
    bias = torch.randn(height)
    x = torch.randn(300, width)
    expected = linear(x, prepared, bias)
    order = torch.randperm(300)
    assert torch.equal(linear(x[order], prepared, bias), expected[order])
    for num_rows in (1, 2, 3, 5, 7, 15, 17, 33, 64, 127, 190):
        start = int(torch.randint(0, 300 - num_rows, ()))
        rows = slice(start, start + num_rows)
        assert torch.equal(linear(x[rows], prepared, bias), expected[rows]), num_rows


def test_rows_that_are_not_contiguous_are_taken() -> None:
    linear = InvariantLinear(PACKED)
    prepared = linear.prepare(torch.randn(24, 16))
    wide = torch.randn(9, 40)
    assert torch.equal(linear(wide[:, 8:24], prepared), linear(wide[:, 8:24].clone(), prepared))


def test_the_plan_is_checked_on_the_weights_at_hand() -> None:
    plan = choose_plan([torch.randn(48, 32), torch.randn(32, 96), torch.randn(48, 32)])
    assert plan.verified
    assert plan.scheme is LinearScheme.PACKED
    assert "bit-equal" in plan.describe()


def test_a_plan_that_fails_the_check_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    def only_tiles(weight: torch.Tensor, plan: LinearPlan) -> bool:
        return plan.scheme is LinearScheme.FIXED_TILES

    monkeypatch.setattr("forebay.exec.linear.is_batch_invariant", only_tiles)
    plan = choose_plan([torch.randn(48, 32)])
    assert plan == LinearPlan(LinearScheme.FIXED_TILES, FIXED_TILE_ROWS, verified=True)


def test_when_no_plan_holds_the_last_is_used_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forebay.exec.linear.is_batch_invariant", lambda *_: False)
    plan = choose_plan([torch.randn(48, 32)])
    assert not plan.verified
    assert "NOT bit-equal" in plan.describe()


def test_the_check_notices_rows_that_depend_on_their_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def depends(_: object, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return x @ weight.to_dense().t() + (x.shape[0] == 33)

    monkeypatch.setattr(InvariantLinear, "__call__", depends)
    assert not is_batch_invariant(torch.randn(48, 32), PACKED)


def test_other_types_run_in_tiles() -> None:
    weight = torch.randn(48, 32, dtype=torch.bfloat16)
    assert not can_pack(weight)
    assert choose_plan([weight]).scheme is LinearScheme.FIXED_TILES
    with pytest.raises(InvariantError, match="float32"):
        InvariantLinear(PACKED).prepare(weight)
