import pytest
import torch

from forebay.errors import CapacityError, InvariantError
from forebay.exec.kv_tensors import KvLayout, KvTensors

LAYOUT = KvLayout(num_layers=2, num_kv_heads=3, head_dim=8, block_size=4)


def filled(num_blocks: int = 6, num_host_blocks: int = 4) -> KvTensors:
    """Pools in which every slot of every layer holds keys and values of its own."""
    pools = KvTensors(LAYOUT, num_blocks=num_blocks, num_host_blocks=num_host_blocks)
    slots = torch.randperm(num_blocks * LAYOUT.block_size)
    for layer in range(LAYOUT.num_layers):
        k, v = torch.randn(2, len(slots), 3, 8)
        pools.write(layer, k, v, slots)
    return pools


def contents(pools: KvTensors, block: int) -> torch.Tensor:
    layers = range(LAYOUT.num_layers)
    return torch.stack(
        [torch.stack((pools.keys(i)[block], pools.values(i)[block])) for i in layers]
    )


def test_a_block_is_as_large_as_its_keys_and_values_of_all_layers() -> None:
    assert LAYOUT.block_bytes == 2 * 2 * 3 * 8 * 4 * 4
    half = KvLayout(num_layers=30, num_kv_heads=3, head_dim=64, block_size=16, dtype=torch.float16)
    assert half.block_bytes == 368_640


@pytest.mark.parametrize("layer", [0, 1])
def test_written_keys_and_values_are_found_at_their_slots(layer: int) -> None:
    pools = KvTensors(LAYOUT, num_blocks=5)
    slots = torch.tensor([7, 0, 19, 12])
    k, v = torch.randn(2, 4, 3, 8)
    pools.write(layer, k, v, slots)
    for token, slot in enumerate(slots.tolist()):
        block, offset = divmod(slot, LAYOUT.block_size)
        assert torch.equal(pools.keys(layer)[block, :, offset], k[token])
        assert torch.equal(pools.values(layer)[block, :, offset], v[token])
    # And nothing anywhere else.
    written = sum(int(pools.keys(i).count_nonzero()) for i in range(LAYOUT.num_layers))
    assert written == k.numel()


def test_slices_of_a_fused_product_can_be_written() -> None:
    pools = KvTensors(LAYOUT, num_blocks=1)
    fused = torch.randn(2, 10, 8)
    pools.write(0, fused[:, 4:7], fused[:, 7:], torch.tensor([0, 1]))
    assert torch.equal(pools.keys(0)[0, :, 1], fused[1, 4:7])
    assert torch.equal(pools.values(0)[0, :, 1], fused[1, 7:])


def test_writing_no_token_changes_nothing() -> None:
    pools = filled()
    before = contents(pools, 0)
    pools.write(0, torch.empty(0, 3, 8), torch.empty(0, 3, 8), torch.empty(0, dtype=torch.int64))
    assert torch.equal(contents(pools, 0), before)


def test_blocks_return_from_the_host_as_they_left() -> None:
    pools = filled()
    kept = [contents(pools, block) for block in (4, 1)]
    pools.swap_out([4, 1], [0, 3])
    pools.copy_blocks([2, 2], [4, 1])
    pools.swap_in([3, 0], [5, 0])
    assert torch.equal(contents(pools, 0), kept[0])
    assert torch.equal(contents(pools, 5), kept[1])


def test_a_copy_on_write_leaves_the_source_and_the_others() -> None:
    pools = filled()
    before = [contents(pools, block) for block in range(6)]
    pools.copy_blocks([2], [5])
    assert torch.equal(contents(pools, 5), before[2])
    for block in range(5):
        assert torch.equal(contents(pools, block), before[block])


def test_copies_happen_in_order() -> None:
    pools = filled()
    first = contents(pools, 0)
    pools.copy_blocks([0, 1], [1, 2])
    assert torch.equal(contents(pools, 2), first)


@pytest.mark.parametrize(("sources", "targets"), [([0, 1], [2]), ([-1], [2]), ([0], [-1])])
def test_copies_that_make_no_sense_are_refused(sources: list[int], targets: list[int]) -> None:
    with pytest.raises(InvariantError):
        filled().copy_blocks(sources, targets)


def test_a_block_past_the_end_is_refused() -> None:
    with pytest.raises(IndexError):
        filled().swap_in([0], [6])


@pytest.mark.parametrize("num_host_blocks", [0, 4])
def test_the_copy_rate_is_measured(num_host_blocks: int) -> None:
    pools = KvTensors(LAYOUT, num_blocks=4, num_host_blocks=num_host_blocks)
    assert pools.measure_copy_bytes_per_s() > 0


def test_a_pool_that_memory_cannot_hold_is_refused() -> None:
    with pytest.raises(CapacityError, match="smaller"):
        KvTensors(LAYOUT, num_blocks=2**48)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_blocks_return_from_the_host_on_cuda() -> None:
    pools = KvTensors(LAYOUT, num_blocks=3, num_host_blocks=2, device="cuda")
    k, v = torch.randn(2, 12, 3, 8, device="cuda")
    for layer in range(LAYOUT.num_layers):
        pools.write(layer, k, v, torch.arange(12, device="cuda"))
    kept = contents(pools, 0)
    pools.swap_out([0], [1])
    pools.copy_blocks([1], [0])
    pools.swap_in([1], [2])
    assert torch.equal(contents(pools, 2), kept)
