"""Every family computes what transformers computes from the same weights, in both containers."""

from pathlib import Path

import pytest
import torch

from forebay.exec.decoder import load_decoder
from forebay.exec.hf_config import read_hf_config
from forebay.exec.model_source import open_model
from tests.support.paged_cache import full_logits
from tests.support.tiny_models import FAMILIES, hf_config, save_gguf, save_hf, state_of

# Past the original 64 positions of the Llama 3.1 scaling.
_NUM_TOKENS = 150


def _tokens(count: int = _NUM_TOKENS) -> list[int]:
    torch.manual_seed(7)
    return torch.randint(0, 160, (count,)).tolist()


def _assert_equal_logits(path: Path, reference: torch.nn.Module) -> None:
    decoder = load_decoder(open_model(path), max_model_len=_NUM_TOKENS)
    found = full_logits(decoder, _tokens())
    with torch.no_grad():
        expected = reference(torch.tensor([_tokens()])).logits[0]
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-5)
    assert torch.equal(found.argmax(-1), expected.argmax(-1))
    # Random weights must not make this easy: the answers differ from place to place.
    assert len(set(expected.argmax(-1).tolist())) > 20


@pytest.mark.parametrize("family", FAMILIES)
def test_hf_directory_equals_transformers(family: str, tmp_path: Path) -> None:
    reference = save_hf(tmp_path, hf_config(family))
    _assert_equal_logits(tmp_path, reference)


@pytest.mark.parametrize("family", FAMILIES)
def test_gguf_file_equals_transformers(family: str, tmp_path: Path) -> None:
    reference = save_hf(tmp_path, hf_config(family))

    def add_rope_factors(writer) -> None:
        if family == "llama31":
            rotary = reference.model.rotary_emb.inv_freq
            plain = 10_000.0 ** -(torch.arange(0, 16, 2) / 16)
            writer.add_tensor("rope_freqs.weight", (plain / rotary).numpy())

    path = tmp_path / "model.gguf"
    config = read_hf_config(tmp_path)
    save_gguf(path, config, state_of(reference), extra=add_rope_factors)
    _assert_equal_logits(path, reference)


def test_llama31_scaling_matters_at_this_length(tmp_path: Path) -> None:
    """The comparison above would fail if the scaling were left out."""
    save_hf(tmp_path / "scaled", hf_config("llama31"))
    save_hf(tmp_path / "plain", hf_config("llama"))
    scaled, plain = (
        full_logits(load_decoder(open_model(tmp_path / name), max_model_len=150), _tokens())
        for name in ("scaled", "plain")
    )
    assert (scaled - plain).abs().max() > 0.1


def test_bfloat16_stays_close_to_float32(tmp_path: Path) -> None:
    from forebay.exec.model_config import DType

    save_hf(tmp_path, hf_config("qwen3"))
    source = open_model(tmp_path)
    exact = full_logits(load_decoder(source, max_model_len=64), _tokens(40))
    decoder = load_decoder(source, max_model_len=64, dtype=DType.BFLOAT16)
    assert decoder.dtype is torch.bfloat16
    rounded = full_logits(decoder, _tokens(40))
    assert rounded.dtype is torch.float32
    assert torch.cosine_similarity(rounded, exact, dim=-1).min() > 0.99
