"""Memory arithmetic against what is really held, and no torch needed for it."""

import subprocess
import sys
from pathlib import Path

import pytest
from torch import Tensor

from forebay.errors import ModelError
from forebay.exec.decoder import load_decoder
from forebay.exec.model_config import (
    AttentionBias,
    DType,
    ModelConfig,
    activation_bytes,
    parameter_count,
    product_shapes,
    rope_table_bytes,
    weight_bytes,
)
from forebay.exec.model_source import open_model
from tests.support.tiny_models import FAMILIES, hf_config, save_hf, small_config


def _bias_bytes(config: ModelConfig) -> int:
    """Of the small sizes: q, k, v are 128 wide, hidden is 64, the MLP 104."""
    num_in_layer = {
        AttentionBias.NONE: 0,
        AttentionBias.QKV: 128,
        AttentionBias.QKV_AND_OUTPUT: 128 + 64,
    }[config.attention_bias]
    num_in_layer += 2 * 104 + 64 if config.mlp_bias else 0
    return 3 * num_in_layer * 4


@pytest.mark.parametrize("family", FAMILIES)
def test_weight_bytes_are_those_of_the_loaded_tensors(family: str, tmp_path: Path) -> None:
    save_hf(tmp_path, hf_config(family))
    products: list[Tensor] = []

    def prepare(weight: Tensor) -> Tensor:
        products.append(weight.clone())
        return products[-1]

    decoder = load_decoder(open_model(tmp_path), max_model_len=100, prepare=prepare)
    weights = decoder.weights
    tensors = [weights.embedding, weights.final_norm]
    for layer in weights.layers:
        tensors += [layer.attn_norm, layer.mlp_norm]
        tensors += [layer.qk_norm] if layer.qk_norm is not None else []
    in_all = sum(tensor.nbytes for tensor in tensors + products) + _bias_bytes(decoder.config)
    assert weight_bytes(decoder.config, DType.FLOAT32) == in_all
    assert weight_bytes(decoder.config, DType.BFLOAT16) == in_all // 2
    assert set(product_shapes(decoder.config)) == {tuple(weight.shape) for weight in products}
    table = decoder._rope.cos.nbytes + decoder._rope.sin.nbytes
    assert rope_table_bytes(decoder.config, 100, DType.FLOAT32) == table


def test_kv_and_activations_of_smollm2() -> None:
    sizes = {"hidden_size": 576, "intermediate_size": 1536, "num_layers": 30}
    heads = {"num_heads": 9, "num_kv_heads": 3, "head_dim": 64, "vocab_size": 49152}
    config = small_config(**sizes, **heads, tie_word_embeddings=True)
    assert parameter_count(config) == 134_515_008  # as its model card says: 135M
    assert config.kv_bytes_per_token(4) == 46_080
    per_token = (2 * 576 + 4 * 1536) * 4
    settings = {"max_num_seqs": 1, "dtype": DType.FLOAT32}
    assert activation_bytes(config, max_num_batched_tokens=2048, **settings) == 2048 * per_token
    settings["max_num_seqs"] = 256
    assert activation_bytes(config, max_num_batched_tokens=256, **settings) >= 256 * 49152 * 8


def test_contradictions_are_listed_together() -> None:
    with pytest.raises(ModelError, match="num_layers is 0, should be positive; 4 attention heads"):
        small_config(num_layers=0, num_kv_heads=3)


def test_configurations_are_read_without_torch() -> None:
    modules = "model_config, hf_config, gguf_config"
    code = f"from forebay.exec import {modules}; import sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
