"""Hugging Face directories: shards, both spellings of RoPE, end tokens, and broken files."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from forebay.errors import ModelError
from forebay.exec.decoder import load_decoder
from forebay.exec.hf_config import read_hf_config
from forebay.exec.hf_source import HfSource
from forebay.exec.model_config import (
    AttentionBias,
    LinearScaling,
    Llama3Scaling,
    ModelConfig,
    RopeConfig,
)
from forebay.exec.model_source import open_model
from tests.support.tiny_models import hf_config, random_weights, save_hf, small_config

_CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 32,
    "hidden_size": 64,
    "intermediate_size": 104,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "eos_token_id": 2,
}


def _write_config(directory: Path, **changes: Any) -> None:
    settings = {k: v for k, v in {**_CONFIG, **changes}.items() if v is not ...}
    (directory / "config.json").write_text(json.dumps(settings))


def _read(directory: Path, **changes: Any) -> ModelConfig:
    _write_config(directory, **changes)
    return read_hf_config(directory)


def _write_model(directory: Path, **tensors: torch.Tensor | None) -> None:
    _write_config(directory)
    weights = random_weights(small_config(vocab_size=32, num_layers=1))
    for suffix, tensor in tensors.items():
        name = f"model.layers.0.mlp.{suffix}_proj.weight"
        del weights[name]
        if tensor is not None:
            weights[name] = tensor
    save_file(weights, directory / "model.safetensors")


def test_shards_load_as_the_single_file_does(tmp_path: Path) -> None:
    single, sharded = tmp_path / "single", tmp_path / "sharded"
    save_hf(single, hf_config("llama"))
    save_hf(sharded, hf_config("llama"), max_shard_size="60KB")
    assert len(list(sharded.glob("model-*.safetensors"))) > 2
    one, many = HfSource(single), HfSource(sharded)
    assert set(one.names()) == set(many.names())
    for name in one.names():
        assert torch.equal(one.read(name), many.read(name)), name
    load_decoder(many, max_model_len=8)


def test_both_spellings_of_llama3_rope_are_one(tmp_path: Path) -> None:
    scaling = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    scaling |= {"original_max_position_embeddings": 128}
    expected = RopeConfig(theta=5e5, scaling=Llama3Scaling(**scaling))
    scaling |= {"rope_type": "llama3"}
    old = _read(tmp_path, rope_theta=5e5, rope_scaling=scaling)
    new = _read(tmp_path, rope_parameters={**scaling, "rope_theta": 5e5})
    assert old.rope == new.rope == expected


def test_older_linear_scaling_and_defaults(tmp_path: Path) -> None:
    assert _read(tmp_path).rope == RopeConfig(theta=10_000.0)
    found = _read(tmp_path, rope_scaling={"type": "linear", "factor": 2}).rope
    assert found == RopeConfig(theta=10_000.0, scaling=LinearScaling(factor=2.0))
    assert _read(tmp_path, num_key_value_heads=...).num_kv_heads == 4
    assert _read(tmp_path, head_dim=None).head_dim == 16
    assert _read(tmp_path, architectures=None, model_type="mistral").qk_norm is False


def test_end_tokens_of_both_files_are_known(tmp_path: Path) -> None:
    assert _read(tmp_path).eos_token_ids == (2,)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [5, 2]}))
    assert _read(tmp_path).eos_token_ids == (5, 2)
    assert _read(tmp_path, eos_token_id=[7, 5]).eos_token_ids == (5, 2, 7)
    (tmp_path / "generation_config.json").write_text("{}")
    assert _read(tmp_path, eos_token_id=None, bos_token_id=1).eos_token_ids == ()


def test_biases_follow_family_and_flags(tmp_path: Path) -> None:
    qwen2, qwen3 = ["Qwen2ForCausalLM"], ["Qwen3ForCausalLM"]
    assert _read(tmp_path).attention_bias is AttentionBias.NONE
    assert _read(tmp_path, attention_bias=True).attention_bias is AttentionBias.QKV_AND_OUTPUT
    assert _read(tmp_path, architectures=qwen2).attention_bias is AttentionBias.QKV
    assert _read(tmp_path, architectures=qwen3).attention_bias is AttentionBias.NONE
    assert _read(tmp_path, architectures=qwen3).head_dim == 128


def test_sliding_windows_count_only_where_layers_slide(tmp_path: Path) -> None:
    qwen2 = {"architectures": ["Qwen2ForCausalLM"], "sliding_window": 64}
    assert _read(tmp_path, sliding_window=64).sliding_window is None  # a Llama has none
    assert _read(tmp_path, **qwen2).sliding_window is None
    slides = {**qwen2, "use_sliding_window": True}
    assert _read(tmp_path, **slides, max_window_layers=1).sliding_window is None
    assert _read(tmp_path, **slides, max_window_layers=0).sliding_window == 64
    mistral = _read(tmp_path, architectures=["MistralForCausalLM"], sliding_window=64)
    assert mistral.max_exact_len == 64


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"architectures": ["GPT2LMHeadModel"]}, "GPT2LMHeadModel is not supported.*Qwen3For"),
        ({"hidden_size": ...}, "config.json: hidden_size is missing"),
        ({"hidden_size": "64"}, "hidden_size is '64', should be a whole number"),
        ({"num_attention_heads": 0}, "num_attention_heads is 0, should be positive"),
        ({"num_key_value_heads": 3}, "4 attention heads cannot share 3 KV heads"),
        ({"head_dim": 15}, "head_dim is 15, RoPE needs an even number"),
        ({"vocab_size": -1}, "config.json: vocab_size is -1, should be positive"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu' is not supported"),
        ({"quantization_config": {"bits": 4}}, "quantized safetensors"),
        ({"rope_scaling": {"type": "yarn", "factor": 2}}, "RoPE scaling 'yarn' is not supported"),
        ({"rope_scaling": {"rope_type": "linear"}}, "rope_scaling: factor is missing"),
        ({"rope_scaling": [1]}, r"rope_scaling is \[1\], should be an object"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"rope_theta": float("nan")}, "rope_theta is nan, should be a finite number"),
        ({"rope_theta": 10**400}, "rope_theta is 10+, should be a finite number"),
        ({"rms_norm_eps": float("inf")}, "rms_norm_eps is inf, should be a finite number"),
        ({"eos_token_id": ["</s>"]}, "eos_token_id is .*should be a whole number or a list"),
        ({"tie_word_embeddings": 1}, "tie_word_embeddings is 1, should be true or false"),
    ],
)
def test_a_configuration_that_cannot_be_served_says_why(
    changes: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(ModelError, match=said) as caught:
        _read(tmp_path, **changes)
    assert "config.json" in str(caught.value)


@pytest.mark.parametrize("content", ["", "{", "[1]", '"llama"', "\ud800"])
def test_a_configuration_that_is_no_object_is_said(content: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(content.encode("utf-8", "surrogatepass"))
    with pytest.raises(ModelError, match=r"config\.json (is not valid JSON|should hold a JSON)"):
        HfSource(tmp_path)


def test_missing_and_misshapen_tensors_are_named(tmp_path: Path) -> None:
    _write_model(tmp_path, up=None)
    with pytest.raises(ModelError, match=r"tensor model\.layers\.0\.mlp\.up_proj\.weight is miss"):
        load_decoder(HfSource(tmp_path), max_model_len=8)
    _write_model(tmp_path, up=torch.zeros(104, 63))
    said = r"model\.safetensors: tensor model.*up_proj\.weight has shape \[104, 63\].*\[104, 64\]"
    with pytest.raises(ModelError, match=said):
        load_decoder(HfSource(tmp_path), max_model_len=8)
    _write_model(tmp_path, up=torch.zeros(104, 64, dtype=torch.int8))
    with pytest.raises(ModelError, match=r"up_proj\.weight has type I8, which is not supported"):
        load_decoder(HfSource(tmp_path), max_model_len=8)


def test_a_tensor_that_would_be_ignored_is_refused(tmp_path: Path) -> None:
    _write_config(tmp_path)
    weights = random_weights(small_config(vocab_size=32, num_layers=1))
    weights["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.zeros(8)
    save_file(weights, tmp_path / "model.safetensors")
    load_decoder(HfSource(tmp_path), max_model_len=8)
    weights["model.layers.0.self_attn.q_proj.bias"] = torch.zeros(64)
    save_file(weights, tmp_path / "model.safetensors")
    with pytest.raises(ModelError, match=r"q_proj\.bias is not part of a llama model"):
        load_decoder(HfSource(tmp_path), max_model_len=8)


def test_a_cut_safetensors_file_is_named(tmp_path: Path) -> None:
    _write_model(tmp_path)
    file = tmp_path / "model.safetensors"
    whole = file.read_bytes()
    for length in (0, 5, 60, len(whole) // 2, len(whole) - 1):
        file.write_bytes(whole[:length])
        with pytest.raises(ModelError, match=r"model\.safetensors is not a sound safetensors"):
            HfSource(tmp_path)


@pytest.mark.parametrize(
    ("index", "said"),
    [
        ({}, "weight_map is missing"),
        ({"weight_map": {"lm_head.weight": "../model.safetensors"}}, "no file name"),
        ({"weight_map": {"lm_head.weight": "model-2.safetensors"}}, "which is missing"),
        ({"weight_map": {"lm_head.bias": "model.safetensors"}}, "lm_head.bias cannot be read"),
    ],
)
def test_a_broken_index_is_named(index: dict[str, Any], said: str, tmp_path: Path) -> None:
    _write_model(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelError, match=said):
        HfSource(tmp_path).shape("lm_head.bias")


def test_paths_that_hold_no_model_say_what_is_wanted(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no model at .*not downloaded by name"):
        open_model(tmp_path / "absent")
    with pytest.raises(ModelError, match=r"neither config\.json nor a \.gguf"):
        open_model(tmp_path)
    _write_config(tmp_path)
    with pytest.raises(ModelError, match=r"neither model\.safetensors nor"):
        open_model(tmp_path)
