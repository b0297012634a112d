from dataclasses import dataclass, replace
from itertools import pairwise

import pytest
import torch

from forebay.errors import InvariantError
from forebay.exec.kv_tensors import KvLayout, KvTensors
from forebay.exec.paged_attention import Inputs, attend_with_torch, paged_attention
from forebay.exec.reference_attention import reference_paged_attention


@dataclass(frozen=True)
class Heads:
    query: int
    kv: int
    dim: int
    block_size: int


SMOLLM2 = Heads(9, 3, 64, 16)
HEADS = [
    SMOLLM2,
    Heads(9, 3, 64, 7),
    Heads(4, 4, 16, 16),
    Heads(8, 2, 40, 32),
    Heads(6, 1, 80, 1),
    Heads(2, 1, 6, 5),
    Heads(4, 2, 128, 256),
    Heads(40, 1, 32, 16),
]
SCALE = 0.125
LENGTHS = [1, 70, 15, 131, 64]


@dataclass(frozen=True)
class Case:
    """Several sequences, written to blocks at random, and a query for each of their positions."""

    pools: KvTensors
    q: torch.Tensor
    tables: torch.Tensor
    rows: torch.Tensor
    positions: torch.Tensor

    def attend(self, chosen: torch.Tensor) -> torch.Tensor:
        return paged_attention(
            self.q[chosen],
            self.pools.keys(1),
            self.pools.values(1),
            self.tables,
            self.rows[chosen].contiguous(),
            self.positions[chosen].contiguous(),
            SCALE,
        )

    def everything(self) -> torch.Tensor:
        return self.attend(torch.arange(len(self.q)))


def write(pools: KvTensors, tables: torch.Tensor, keys_and_values: list[torch.Tensor]) -> None:
    size = pools.layout.block_size
    for row, (k, v) in enumerate(keys_and_values):
        at = torch.arange(k.shape[0])
        slots = tables[row].long()[at // size] * size + at % size
        pools.write(1, k, v, slots)


def make_case(heads: Heads, lengths: list[int] = LENGTHS, seed: int = 0) -> Case:
    torch.manual_seed(seed)
    size = heads.block_size
    per_row = -(-max(lengths) // size) + 1
    num_blocks = per_row * len(lengths)
    layout = KvLayout(num_layers=2, num_kv_heads=heads.kv, head_dim=heads.dim, block_size=size)
    pools = KvTensors(layout, num_blocks=num_blocks)
    tables = torch.randperm(num_blocks).view(len(lengths), per_row).int().contiguous()
    write(pools, tables, [torch.randn(2, n, heads.kv, heads.dim) for n in lengths])
    rows = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    positions = torch.cat([torch.arange(n) for n in lengths])
    q = 2 * torch.randn(sum(lengths), heads.query, heads.dim)
    return Case(pools, q, tables, rows.int(), positions.int())


def oracle(case: Case) -> torch.Tensor:
    return reference_paged_attention(
        case.q,
        case.pools.keys(1),
        case.pools.values(1),
        case.tables,
        case.rows,
        case.positions,
        SCALE,
    )


@pytest.mark.parametrize("heads", HEADS, ids=str)
def test_attention_is_that_of_plain_torch(heads: Heads) -> None:
    case = make_case(heads)
    torch.testing.assert_close(case.everything(), oracle(case), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("heads", HEADS, ids=str)
def test_the_path_of_other_devices_is_that_of_plain_torch(heads: Heads) -> None:
    case = make_case(heads)
    out = torch.full_like(case.q, torch.nan)
    caches = case.pools.keys(1), case.pools.values(1)
    inputs = Inputs(case.q, *caches, case.tables, case.rows, case.positions, SCALE)
    found = attend_with_torch(inputs, out)
    assert found is out
    torch.testing.assert_close(found, oracle(case), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("heads", HEADS, ids=str)
def test_a_query_is_bit_equal_alone_and_beside_any_others(heads: Heads) -> None:
    case = make_case(heads)
    expected = case.everything()
    num_tokens = len(case.q)
    for token in range(0, num_tokens, 11):
        assert torch.equal(case.attend(torch.tensor([token]))[0], expected[token])
    for _ in range(3):
        order = torch.randperm(num_tokens)
        assert torch.equal(case.attend(order), expected[order])
        some = order[: int(torch.randint(1, num_tokens, ()))].sort().values
        assert torch.equal(case.attend(some), expected[some])


@pytest.mark.parametrize("heads", [SMOLLM2, Heads(4, 2, 24, 5)], ids=str)
def test_a_prompt_is_bit_equal_however_it_is_cut_into_chunks(heads: Heads) -> None:
    case = make_case(heads, [300])
    expected = case.everything()
    for _ in range(4):
        cuts = sorted({0, 300, *torch.randint(1, 300, (6,)).tolist()})
        for start, end in pairwise(cuts):
            assert torch.equal(case.attend(torch.arange(start, end)), expected[start:end])


def test_decodes_beside_a_prompt_chunk_are_bit_equal_to_decodes_alone() -> None:
    case = make_case(SMOLLM2, [90, 40, 17, 200])
    last = torch.tensor([89, 129, 146])
    chunk = torch.arange(147, 347)
    together = case.attend(torch.cat((last, chunk)))
    assert torch.equal(together[:3], case.attend(last))
    assert torch.equal(together[3:], case.attend(chunk))


@pytest.mark.parametrize("block_size", [1, 5, 16, 48, 256])
def test_block_size_and_block_ids_change_no_bit(block_size: int) -> None:
    results = []
    for heads in (SMOLLM2, replace(SMOLLM2, block_size=block_size)):
        case = make_case(heads, [150])
        torch.manual_seed(5)
        write(case.pools, case.tables, [torch.randn(2, 150, 3, 64)])
        q = torch.randn(150, 9, 64)
        results.append(replace(case, q=q).everything())
    assert torch.equal(*results)


def test_the_number_of_threads_changes_no_bit() -> None:
    case = make_case(SMOLLM2)
    before = torch.get_num_threads()
    results = []
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            results.append(case.everything())
    finally:
        torch.set_num_threads(before)
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


def test_slots_past_the_last_position_are_never_read() -> None:
    case = make_case(SMOLLM2, [37])
    expected = case.everything()
    table = case.tables[0].long()
    for cache in (case.pools.keys(1), case.pools.values(1)):
        cache[table[2], :, 5:] = torch.nan
        cache[table[3:]] = torch.inf
    assert torch.equal(case.everything(), expected)


def test_large_scores_do_not_overflow() -> None:
    case = make_case(SMOLLM2)
    case = replace(case, q=case.q * 100)
    found = case.everything()
    assert found.isfinite().all()
    torch.testing.assert_close(found, oracle(case), rtol=1e-2, atol=1e-2)


def test_a_slice_of_a_fused_product_is_taken_as_queries() -> None:
    case = make_case(SMOLLM2)
    fused = torch.randn(len(case.q), 15, 64)
    sliced = replace(case, q=fused[:, :9])
    whole = replace(case, q=fused[:, :9].clone())
    args = (case.pools.keys(1), case.pools.values(1), case.tables, case.rows, case.positions, SCALE)
    assert torch.equal(paged_attention(sliced.q, *args), whole.everything())


def test_no_token_is_no_work() -> None:
    case = make_case(SMOLLM2)
    assert case.attend(torch.tensor([], dtype=torch.int64)).shape == (0, 9, 64)


def test_the_result_goes_where_it_is_wanted() -> None:
    case = make_case(SMOLLM2)
    out = torch.empty_like(case.q)
    args = (case.pools.keys(1), case.pools.values(1), case.tables, case.rows, case.positions)
    assert paged_attention(case.q, *args, SCALE, out) is out
    assert torch.equal(out, case.everything())


def test_tensors_that_do_not_fit_are_refused_before_an_address_is_used() -> None:
    case = make_case(SMOLLM2)
    keys, values = case.pools.keys(1), case.pools.values(1)
    indices = (case.tables, case.rows, case.positions)
    with pytest.raises(InvariantError, match="dimension-major"):
        paged_attention(case.q, keys.contiguous(), values, *indices, SCALE)
    with pytest.raises(InvariantError, match="no multiple"):
        paged_attention(case.q[:, :8].contiguous(), keys, values, *indices, SCALE)
    with pytest.raises(InvariantError, match="int32"):
        paged_attention(case.q, keys, values, case.tables.long(), *indices[1:], SCALE)


def test_half_precision_takes_the_path_of_other_devices() -> None:
    case = make_case(SMOLLM2)
    caches = case.pools.keys(1).half(), case.pools.values(1).half()
    found = paged_attention(case.q.half(), *caches, case.tables, case.rows, case.positions, SCALE)
    torch.testing.assert_close(found.float(), oracle(case), rtol=1e-2, atol=1e-2)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_attention_on_cuda_is_that_on_the_cpu() -> None:
    case = make_case(SMOLLM2)
    tensors = (case.q, case.pools.keys(1), case.pools.values(1))
    indices = (case.tables, case.rows, case.positions)
    found = paged_attention(*(t.cuda() for t in (*tensors, *indices)), SCALE)
    torch.testing.assert_close(found.cpu(), case.everything(), rtol=1e-4, atol=1e-4)
