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
    choose_plan,
    is_batch_invariant,
)

KERNEL, PACKED, TILES = CANDIDATES[0], CANDIDATES[1], CANDIDATES[-1]
each_plan = pytest.mark.parametrize(
    "plan", [KERNEL, PACKED, TILES], ids=lambda plan: plan.scheme.value
)


@each_plan
@pytest.mark.parametrize(("width", "height"), [(64, 192), (176, 80), (48, 40), (37, 5)])
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
        found, expected = linear(x, prepared, bias), F.linear(x, weight, bias)
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-4)


@each_plan
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


@each_plan
def test_rows_that_are_not_contiguous_are_taken(plan: LinearPlan) -> None:
    linear = InvariantLinear(plan)
    prepared = linear.prepare(torch.randn(24, 16))
    wide = torch.randn(9, 40)
    expected = linear(wide[:, 8:24].clone(), prepared)
    assert torch.equal(linear(wide[:, 8:24], prepared), expected)
    assert torch.equal(linear(wide[:, 8:24].t().contiguous().t(), prepared), expected)


def test_more_rows_than_one_block_are_bit_equal_to_fewer() -> None:
    linear = InvariantLinear(KERNEL)
    prepared = linear.prepare(torch.randn(64, 32))
    x = torch.randn(700, 32)
    expected = linear(x, prepared)
    for start, end in ((0, 1), (250, 260), (255, 700), (13, 530)):
        assert torch.equal(linear(x[start:end], prepared), expected[start:end])


def test_the_kernel_gives_the_same_bits_on_any_number_of_threads() -> None:
    linear = InvariantLinear(KERNEL)
    prepared = linear.prepare(torch.randn(112, 64))
    x = torch.randn(33, 64)
    before = torch.get_num_threads()
    try:
        results = []
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            results.append(linear(x, prepared))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


def test_what_does_not_fit_is_refused_before_an_address_is_used() -> None:
    linear = InvariantLinear(KERNEL)
    weight = torch.randn(48, 32)
    prepared = linear.prepare(weight)
    with pytest.raises(InvariantError, match="prepare"):
        linear(torch.randn(2, 32), weight)
    with pytest.raises(InvariantError, match="rows of 31"):
        linear(torch.randn(2, 31), prepared)
    with pytest.raises(InvariantError, match="float64"):
        linear(torch.randn(2, 32).double(), prepared)
    with pytest.raises(InvariantError, match="bias"):
        linear(torch.randn(2, 32), prepared, torch.randn(47))


def test_the_plan_is_checked_on_the_weights_at_hand() -> None:
    plan = choose_plan([torch.randn(48, 32), torch.randn(32, 96), torch.randn(48, 32)])
    assert plan.verified
    assert plan.scheme is LinearScheme.KERNEL
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
        return x @ weight.t() + (x.shape[0] == 33)

    monkeypatch.setattr(InvariantLinear, "__call__", depends)
    assert not is_batch_invariant(torch.randn(48, 32), TILES)


def test_other_types_run_in_tiles() -> None:
    weight = torch.randn(48, 32, dtype=torch.bfloat16)
    assert not KERNEL.suits(weight)
    assert not PACKED.suits(weight)
    assert choose_plan([weight]).scheme is LinearScheme.FIXED_TILES
    with pytest.raises(InvariantError, match="bfloat16"):
        InvariantLinear(PACKED).prepare(weight)
