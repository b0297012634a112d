from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from forebay.errors import InvariantError
from forebay.exec import fused, rope
from forebay.exec.kv_tensors import KvLayout, KvTensors

EPS = 1e-5
COUNTS = (1, 2, 3, 7, 8, 9, 15, 16, 17, 33, 64, 101, 255, 299, 300)
Rows = Callable[[slice], Tensor]


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def normed(rows: slice) -> Tensor:
    torch.manual_seed(1)
    hidden, delta, weight = torch.randn(300, 576), torch.randn(300, 576), torch.randn(576)
    hidden = hidden[rows].clone()
    return torch.cat((fused.add_norm_(hidden, delta[rows].clone(), weight, EPS), hidden), 1)


def gated(rows: slice) -> Tensor:
    torch.manual_seed(2)
    return fused.silu_mul(torch.randn(300, 2 * 1536)[rows] * 4)


def gated_in_torch(rows: slice) -> Tensor:
    torch.manual_seed(2)
    return fused.silu_mul(torch.randn(300, 2 * 37)[rows] * 4)


def rotated(rows: slice) -> Tensor:
    torch.manual_seed(3)
    heads, angles = torch.randn(300, 15, 64), torch.randn(300, 1, 32) * 100
    heads = heads[rows].clone()
    fused.rotate_(heads[:, :12], angles[rows].cos(), angles[rows].sin())
    return heads


@pytest.mark.parametrize("num_threads", [1, 2, 3])
@pytest.mark.parametrize("compute", [normed, gated, gated_in_torch, rotated])
def test_rows_have_the_same_bits_in_any_company(compute: Rows, num_threads: int) -> None:
    torch.set_num_threads(1)
    whole = compute(slice(0, 300))
    torch.set_num_threads(num_threads)
    for count in COUNTS:
        assert torch.equal(compute(slice(0, count)), whole[:count]), count
        assert torch.equal(compute(slice(300 - count, 300)), whole[300 - count :]), count
    for row in range(0, 300, 13):
        assert torch.equal(compute(slice(row, row + 1)), whole[row : row + 1]), row


@pytest.mark.parametrize("width", [576, 16, 40, 1])
@pytest.mark.parametrize("adds", [True, False])
def test_the_norm_is_that_of_torch(width: int, adds: bool) -> None:
    hidden, weight = torch.randn(19, width) * 3, torch.randn(width)
    delta = torch.randn(19, width + 2)[:, :width] if adds else None
    total = hidden if delta is None else hidden + delta
    expected = F.rms_norm(total.double(), (width,), weight.double(), EPS)

    result = fused.add_norm_(hidden, delta, weight, EPS)

    assert torch.equal(hidden, total)
    torch.testing.assert_close(result.double(), expected, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("scale", [0.01, 1.0, 10.0, 25.0])
def test_the_gate_is_within_rounding_of_the_exact_one(scale: float) -> None:
    both = torch.randn(50, 2 * 64) * scale
    exact = F.silu(both.double()[:, :64]) * both.double()[:, 64:]
    torch.testing.assert_close(fused.silu_mul(both).double(), exact, rtol=1e-6, atol=1e-30)


def test_extreme_gates_are_those_of_torch() -> None:
    extreme = [-1e4, -100.0, -88.0, -0.0, 0.0, 88.0, 1e4, float("inf"), float("nan")]
    gate = torch.tensor([extreme + [0.0] * 7])
    both = torch.cat((gate, torch.ones_like(gate)), 1)
    torch.testing.assert_close(fused.silu_mul(both), F.silu(gate), equal_nan=True)


@pytest.mark.parametrize("head_dim", [32, 64, 128, 20])
def test_the_rotation_is_that_of_torch_to_the_bit(head_dim: int) -> None:
    heads, angles = torch.randn(9, 5, head_dim), torch.randn(9, 1, head_dim // 2) * 50
    expected = heads.clone()
    rope.rotate_(expected[:, :3], angles.cos(), angles.sin())
    fused.rotate_(heads[:, :3], angles.cos(), angles.sin())
    assert torch.equal(heads, expected)


@pytest.mark.parametrize("block_size", [1, 16, 24])
@pytest.mark.parametrize("num_tokens", [0, 1, 5, 60])
def test_keys_and_values_come_to_lie_in_their_slots(block_size: int, num_tokens: int) -> None:
    layout = KvLayout(num_layers=2, num_kv_heads=3, head_dim=32, block_size=block_size)
    pools = KvTensors(layout, num_blocks=80)
    slots = torch.randperm(80 * block_size)[:num_tokens]
    heads = torch.randn(num_tokens, 10, 32)
    keys, values = torch.zeros_like(pools.keys(1)), torch.zeros_like(pools.values(1))
    blocks, offsets = slots // block_size, slots % block_size
    keys.transpose(1, 2)[blocks, offsets] = heads[:, 4:7]
    values.transpose(1, 2)[blocks, offsets] = heads[:, 7:]

    pools.write(1, heads[:, 4:7], heads[:, 7:], slots)

    assert torch.equal(pools.keys(1), keys)
    assert torch.equal(pools.values(1), values)
    assert not pools.keys(0).any()
    assert not pools.values(0).any()


@pytest.mark.parametrize("slot", [-1, 64, 1 << 40])
def test_a_slot_outside_the_pool_is_refused(slot: int) -> None:
    layout = KvLayout(num_layers=1, num_kv_heads=1, head_dim=16, block_size=16)
    pools = KvTensors(layout, num_blocks=4)
    heads = torch.randn(2, 1, 16)
    with pytest.raises(InvariantError, match="1 slots lie outside the pool of 4 blocks"):
        pools.write(0, heads, heads, torch.tensor([3, slot]))
    assert torch.equal(pools.values(0)[0, 0, 3], heads[0, 0])


def test_fewer_rows_than_the_angles_are_refused() -> None:
    with pytest.raises(InvariantError, match="should be"):
        fused.rotate_(torch.randn(3, 2, 32), torch.randn(2, 1, 16), torch.randn(2, 1, 16))


def test_other_types_are_left_to_torch() -> None:
    hidden, delta = torch.randn(4, 32).double(), torch.randn(4, 32).double()
    expected = F.rms_norm(hidden + delta, (32,), torch.ones(32).double(), EPS)
    assert torch.equal(fused.add_norm_(hidden, delta, torch.ones(32).double(), EPS), expected)
    both = torch.randn(4, 64).bfloat16()
    assert torch.equal(fused.silu_mul(both), F.silu(both[:, :32]) * both[:, 32:])
