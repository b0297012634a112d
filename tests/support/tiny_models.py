"""Tiny random models on disk: Hugging Face directories and GGUF files.

`save_hf` goes through transformers and returns its model, the reference. `save_gguf` writes any
weights with the `gguf` package's own writer and name map. `random_weights` needs neither
transformers nor a download, for tests that only want some model.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import MODEL_ARCH, GGMLQuantizationType, GGUFWriter, get_tensor_name_map, quants
from torch import Tensor

from forebay.exec.model_config import (
    Architecture,
    AttentionBias,
    LinearScaling,
    ModelConfig,
    RopeConfig,
)

_GGUF_ARCH = {
    Architecture.LLAMA: MODEL_ARCH.LLAMA,
    Architecture.MISTRAL: MODEL_ARCH.LLAMA,
    Architecture.QWEN2: MODEL_ARCH.QWEN2,
    Architecture.QWEN3: MODEL_ARCH.QWEN3,
}
_SMALL = {
    "vocab_size": 160,
    "hidden_size": 64,
    "intermediate_size": 104,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "eos_token_id": 2,
    "bos_token_id": 1,
}
_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
_LINEAR = {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 4.0}

FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", {"tie_word_embeddings": False}),
    "llama_tied": ("LlamaConfig", {"tie_word_embeddings": True}),
    "llama_biased": ("LlamaConfig", {"attention_bias": True, "mlp_bias": True}),
    "llama31": ("LlamaConfig", {"rope_parameters": _LLAMA3}),
    "llama_linear": ("LlamaConfig", {"rope_parameters": _LINEAR}),
    "mistral": ("MistralConfig", {"sliding_window": None, "head_dim": 24}),
    "qwen2": ("Qwen2Config", {"tie_word_embeddings": True}),
    "qwen3": ("Qwen3Config", {"head_dim": 32, "tie_word_embeddings": False}),
}
"""By name: the transformers configuration class, and what it sets besides small sizes."""


def hf_config(family: str, **changes: Any) -> Any:
    """A transformers configuration of `family`, small."""
    import transformers

    kind, settings = FAMILIES[family]
    return getattr(transformers, kind)(**{**_SMALL, **settings, **changes})


def save_hf(directory: Path, config: Any, *, seed: int = 0, max_shard_size: str = "1GB") -> Any:
    """Save a random model of `config` as safetensors and return it, float32 in eval mode."""
    import transformers

    transformers.utils.logging.disable_progress_bar()
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        # The library starts norms at one and biases at zero, where mistakes would not show.
        for name, parameter in model.named_parameters():
            parameter.copy_(_random_like(name, parameter))
    model.save_pretrained(directory, max_shard_size=max_shard_size)
    return model


def small_config(**changes: Any) -> ModelConfig:
    """The sizes of the small models here as our own configuration: an untied Llama."""
    settings: dict[str, Any] = {
        "architecture": Architecture.LLAMA,
        "vocab_size": 160,
        "hidden_size": 64,
        "intermediate_size": 104,
        "num_layers": 3,
        "num_heads": 4,
        "num_kv_heads": 2,
        "head_dim": 16,
        "rms_norm_eps": 1e-5,
        "rope": RopeConfig(theta=10_000.0),
        "tie_word_embeddings": False,
        "max_position_embeddings": 512,
        "eos_token_ids": (2,),
        "bos_token_id": 1,
    }
    return ModelConfig(**{**settings, **changes})


def random_weights(config: ModelConfig, *, seed: int = 0) -> dict[str, Tensor]:
    """Random weights by Hugging Face name for `config`; no biases, no QK norm."""
    assert config.attention_bias is AttentionBias.NONE
    assert not config.mlp_bias
    assert not config.qk_norm
    hidden, mid, kv = config.hidden_size, config.intermediate_size, config.kv_size
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (config.vocab_size, hidden)}
    for index in range(config.num_layers):
        prefix = f"model.layers.{index}"
        shapes[f"{prefix}.input_layernorm.weight"] = (hidden,)
        shapes[f"{prefix}.self_attn.q_proj.weight"] = (config.q_size, hidden)
        shapes[f"{prefix}.self_attn.k_proj.weight"] = (kv, hidden)
        shapes[f"{prefix}.self_attn.v_proj.weight"] = (kv, hidden)
        shapes[f"{prefix}.self_attn.o_proj.weight"] = (hidden, config.q_size)
        shapes[f"{prefix}.post_attention_layernorm.weight"] = (hidden,)
        shapes[f"{prefix}.mlp.gate_proj.weight"] = (mid, hidden)
        shapes[f"{prefix}.mlp.up_proj.weight"] = (mid, hidden)
        shapes[f"{prefix}.mlp.down_proj.weight"] = (hidden, mid)
    shapes["model.norm.weight"] = (hidden,)
    if not config.tie_word_embeddings:
        shapes["lm_head.weight"] = (config.vocab_size, hidden)
    torch.manual_seed(seed)
    return {name: _random_like(name, torch.empty(shape)) for name, shape in shapes.items()}


def save_gguf(
    path: Path,
    config: ModelConfig,
    weights: Mapping[str, Tensor],
    *,
    kinds: Mapping[str, GGMLQuantizationType] | None = None,
    extra: Callable[[GGUFWriter], None] = lambda _: None,
) -> None:
    """Write `weights` (Hugging Face names) as GGUF, each float32 unless `kinds` names its type.

    `extra` may add metadata (a tokenizer, say) and tensors, or wreck something.
    """
    arch = _GGUF_ARCH[config.architecture]
    writer = GGUFWriter(path, _arch_name(config))
    _add_metadata(writer, config)
    names = get_tensor_name_map(arch, config.num_layers)
    for name, tensor in weights.items():
        gguf_name = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert gguf_name is not None, name
        values = _as_stored(name, tensor.detach().float(), config).numpy()
        kind = (kinds or {}).get(name, GGMLQuantizationType.F32)
        data = quants.quantize(np.ascontiguousarray(values), kind)
        writer.add_tensor(gguf_name, data, raw_dtype=kind)
    extra(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def state_of(model: Any) -> dict[str, Tensor]:
    """The weights of a transformers model, a tied head left out."""
    state = dict(model.state_dict())
    if model.config.tie_word_embeddings:
        del state["lm_head.weight"]
    return state


def _arch_name(config: ModelConfig) -> str:
    return "llama" if config.architecture is Architecture.MISTRAL else config.architecture.value


def _add_metadata(writer: GGUFWriter, config: ModelConfig) -> None:
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_heads)
    writer.add_head_count_kv(config.num_kv_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope.theta)
    if isinstance(config.rope.scaling, LinearScaling):
        writer.add_string(f"{_arch_name(config)}.rope.scaling.type", "linear")
        writer.add_rope_scaling_factor(config.rope.scaling.factor)
    for token in config.eos_token_ids[:1]:
        writer.add_eos_token_id(token)
    if config.bos_token_id is not None:
        writer.add_bos_token_id(config.bos_token_id)


def _as_stored(name: str, tensor: Tensor, config: ModelConfig) -> Tensor:
    """GGUF files of architecture llama interleave the two halves of each query and key head."""
    if _arch_name(config) != "llama":
        return tensor
    for part, num_heads in (("q_proj", config.num_heads), ("k_proj", config.num_kv_heads)):
        if part in name:
            halves = tensor.view(num_heads, 2, config.head_dim // 2, *tensor.shape[1:])
            return halves.transpose(1, 2).reshape(tensor.shape)
    return tensor


def _random_like(name: str, tensor: Tensor) -> Tensor:
    if "norm" in name:
        return 1.0 + 0.3 * torch.randn_like(tensor)
    if name.endswith(".bias"):
        return 0.3 * torch.randn_like(tensor)
    return torch.randn_like(tensor) * (1.5 if "embed" in name else 1.3 / tensor.shape[-1] ** 0.5)
