"""The flat batch: chunks, mixtures and neighbours do not change what a row computes."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from forebay.errors import ModelError
from forebay.exec.decoder import Decoder, load_decoder
from forebay.exec.fused import silu
from forebay.exec.linear import InvariantLinear, choose_plan
from forebay.exec.model_config import DType
from forebay.exec.model_source import open_model
from forebay.exec.weights import probe_weights
from tests.support.paged_cache import PagedCache, full_logits
from tests.support.tiny_models import random_weights, save_gguf, small_config

# No whole number of vectors, so that a row's end falls inside one.
_ODD_SIZES = {"hidden_size": 50, "intermediate_size": 77, "head_dim": 14, "num_layers": 2}


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "odd.gguf"
    config = small_config(**_ODD_SIZES)
    save_gguf(path, config, random_weights(config))
    return path


def _decoder(path: Path, **options) -> Decoder:
    return load_decoder(open_model(path), max_model_len=300, **options)


def _sum_of_products(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """A product that treats each row alone; torch's own changes bits with the number of rows."""
    assert bias is None
    return (x.unsqueeze(1) * weight).sum(-1)


def test_chunked_prefill_mixed_with_decode_equals_whole_sequences(model_path: Path) -> None:
    decoder = _decoder(model_path)
    torch.manual_seed(1)
    sequences = [torch.randint(0, 160, (length,)).tolist() for length in (23, 40, 9)]
    # Per step, how many tokens of each sequence: chunks beside decodes, one arriving late.
    steps = [(7, 5, 0), (1, 20, 0), (10, 1, 4), (1, 1, 1), (4, 13, 4)]
    cache = PagedCache(decoder.config, num_blocks=40, block_size=4)
    tables = torch.randperm(40)[:36].view(3, 12).int()
    found: list[list[Tensor]] = [[], [], []]
    done = [0, 0, 0]
    for step in steps:
        rows = [row for row, count in enumerate(step) for _ in range(count)]
        positions = [done[row] + at for row, count in enumerate(step) for at in range(count)]
        ids = [sequences[row][at] for row, at in zip(rows, positions, strict=True)]
        attend = cache.attend(tables, torch.tensor(rows).int(), torch.tensor(positions).int())
        hidden = decoder.forward(torch.tensor(ids), torch.tensor(positions), attend)
        for row, logits in zip(rows, decoder.logits(hidden), strict=True):
            found[row].append(logits)
        done = [before + count for before, count in zip(done, step, strict=True)]
    assert done == [len(sequence) for sequence in sequences]
    for sequence, logits in zip(sequences, found, strict=True):
        expected = full_logits(decoder, sequence)
        torch.testing.assert_close(torch.stack(logits), expected, atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("num_threads", [1, 2, 3])
def test_a_row_has_the_same_bits_in_every_batch(
    model_path: Path, num_threads: int, threads: None
) -> None:
    torch.set_num_threads(num_threads)
    decoder = _decoder(model_path, linear=_sum_of_products)
    torch.manual_seed(2)
    ids, positions = torch.randint(0, 160, (300,)), torch.randint(0, 300, (300,))

    def hidden(first: int, last: int) -> Tensor:
        return decoder.forward(ids[first:last], positions[first:last], lambda _, q, k, v: q * 0.5)

    whole = hidden(0, 300)
    assert torch.isfinite(whole).all()
    for first, last in [(0, n) for n in (*range(1, 9), 33, 127)] + [(7, 8), (101, 300)]:
        assert torch.equal(hidden(first, last), whole[first:last]), (first, last)


@pytest.mark.parametrize("num_threads", [1, 2, 3])
@pytest.mark.parametrize("width", [1536, 1000, 37])
def test_silu_has_the_same_bits_at_every_place(width: int, num_threads: int, threads: None) -> None:
    torch.set_num_threads(num_threads)
    torch.manual_seed(4)
    fused = torch.randn(300, 2 * width) * 4
    whole = silu(fused[:, :width])
    torch.testing.assert_close(whole, torch.nn.functional.silu(fused[:, :width]))
    for count in (1, 2, 3, 5, 37, 64, 101, 173, 255, 256, 299):
        assert torch.equal(silu(fused[:count, :width]), whole[:count]), count


def test_silu_of_extreme_values_is_that_of_torch() -> None:
    extreme = torch.tensor([[-1e4, -100.0, -88.0, -0.0, 0.0, 88.0, 1e4]])
    torch.testing.assert_close(silu(extreme), torch.nn.functional.silu(extreme))


def test_a_length_beyond_the_model_is_refused_with_the_longest(model_path: Path) -> None:
    with pytest.raises(ModelError, match="set max_model_len to at most 512"):
        load_decoder(open_model(model_path), max_model_len=513)


def test_a_length_beyond_the_sliding_window_is_refused_with_the_window(tmp_path: Path) -> None:
    config = small_config()

    def add_window(writer) -> None:
        writer.add_sliding_window(128)

    save_gguf(tmp_path / "m.gguf", config, random_weights(config), extra=add_window)
    source = open_model(tmp_path / "m.gguf")
    with pytest.raises(ModelError, match=r"sliding window.*max_model_len to at most 128"):
        load_decoder(source, max_model_len=129)
    load_decoder(source, max_model_len=128)


def test_invariant_products_make_whole_forwards_invariant(model_path: Path) -> None:
    source = open_model(model_path)
    probes = probe_weights(source.config, dtype=DType.FLOAT32, device=torch.device("cpu"))
    plan = choose_plan(probes)
    assert plan.verified
    linear = InvariantLinear(plan)
    decoder = _decoder(model_path, linear=linear, prepare=linear.prepare)
    plain = _decoder(model_path)
    torch.manual_seed(9)
    ids, positions = torch.randint(0, 160, (300,)), torch.randint(0, 300, (300,))

    def logits(model: Decoder, first: int, last: int) -> Tensor:
        hidden = model.forward(ids[first:last], positions[first:last], lambda _, q, k, v: q)
        return model.logits(hidden)

    whole = logits(decoder, 0, 300)
    torch.testing.assert_close(whole, logits(plain, 0, 300), atol=1e-4, rtol=1e-5)
    for first, last in [(0, n) for n in (1, 2, 3, 7, 16, 31, 65)] + [(17, 18), (250, 300)]:
        assert torch.equal(logits(decoder, first, last), whole[first:last]), (first, last)
