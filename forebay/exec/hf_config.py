"""The `config.json` of a Hugging Face model directory as a ModelConfig, without torch.

Both spellings of RoPE are read: `rope_parameters` (transformers 5) and `rope_theta` with
`rope_scaling` (before).
"""

import json
from pathlib import Path

from forebay.errors import ModelError
from forebay.exec.config_fields import Fields
from forebay.exec.model_config import (
    Architecture,
    AttentionBias,
    LinearScaling,
    Llama3Scaling,
    ModelConfig,
    RopeConfig,
)

_DEFAULT_THETA = 10_000.0
_ARCHITECTURES = {
    "LlamaForCausalLM": Architecture.LLAMA,
    "MistralForCausalLM": Architecture.MISTRAL,
    "Qwen2ForCausalLM": Architecture.QWEN2,
    "Qwen3ForCausalLM": Architecture.QWEN3,
}


def read_hf_config(directory: Path) -> ModelConfig:
    """Read `config.json`, and the end tokens of `generation_config.json` if there is one.

    Raises ModelError naming file and key for anything missing, malformed or not computed here.
    """
    path = directory / "config.json"
    fields = Fields(str(path), read_json_object(path))
    architecture = _architecture(fields)
    _refuse_what_is_not_computed(fields)
    hidden_size = fields.integer("hidden_size")
    num_heads = fields.integer("num_attention_heads")
    if num_heads <= 0:
        raise fields.wrong("num_attention_heads", "positive")
    eos_token_ids, bos_token_id = _special_tokens(directory, fields)
    try:
        return ModelConfig(
            architecture=architecture,
            vocab_size=fields.integer("vocab_size"),
            hidden_size=hidden_size,
            intermediate_size=fields.integer("intermediate_size"),
            num_layers=fields.integer("num_hidden_layers"),
            num_heads=num_heads,
            num_kv_heads=fields.integer("num_key_value_heads", num_heads),
            head_dim=fields.integer("head_dim", _default_head_dim(architecture, fields)),
            rms_norm_eps=fields.number("rms_norm_eps"),
            rope=_rope(fields),
            tie_word_embeddings=fields.flag("tie_word_embeddings", default=False),
            max_position_embeddings=fields.integer("max_position_embeddings"),
            qk_norm=architecture is Architecture.QWEN3,
            attention_bias=_attention_bias(architecture, fields),
            mlp_bias=fields.flag("mlp_bias", default=False),
            sliding_window=_sliding_window(architecture, fields),
            eos_token_ids=eos_token_ids,
            bos_token_id=bos_token_id,
        )
    except ModelError as error:
        if str(path) in str(error):
            raise
        raise ModelError(f"{path}: {error}") from None


def read_json_object(path: Path) -> dict[str, object]:
    """The JSON object in `path`; raises ModelError when there is none."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelError(f"{path} is missing") from None
    except OSError as error:
        raise ModelError(f"cannot read {path}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise ModelError(f"{path} should hold a JSON object, holds {type(value).__name__}")
    return value


def _architecture(fields: Fields) -> Architecture:
    named = fields.get("architectures")
    if isinstance(named, list) and named:
        known = _ARCHITECTURES.get(str(named[0]))
    else:
        named = [fields.text("model_type")]
        known = {item.value: item for item in Architecture}.get(named[0])
    if known is None:
        raise ModelError(
            f"{fields.file}: architecture {named[0]} is not supported; "
            f"supported are {', '.join(_ARCHITECTURES)}"
        )
    return known


def _refuse_what_is_not_computed(fields: Fields) -> None:
    activation = fields.text("hidden_act", "silu")
    if activation not in ("silu", "swish"):
        raise ModelError(f"{fields.file}: hidden_act {activation!r} is not supported, only 'silu'")
    if fields.get("quantization_config") is not None:
        raise ModelError(
            f"{fields.file}: quantized safetensors (quantization_config) are not supported; "
            f"use the unquantized model or a GGUF file"
        )
    if fields.number("partial_rotary_factor", 1.0) != 1.0:
        raise ModelError(f"{fields.file}: partial_rotary_factor other than 1 is not supported")


def _default_head_dim(architecture: Architecture, fields: Fields) -> int:
    # Qwen3Config's own default; it does not follow from the hidden size.
    if architecture is Architecture.QWEN3:
        return 128
    return fields.integer("hidden_size") // fields.integer("num_attention_heads")


def _attention_bias(architecture: Architecture, fields: Fields) -> AttentionBias:
    if architecture is Architecture.QWEN2:
        return AttentionBias.QKV
    if architecture is not Architecture.MISTRAL and fields.flag("attention_bias", default=False):
        return AttentionBias.QKV_AND_OUTPUT
    return AttentionBias.NONE


def _sliding_window(architecture: Architecture, fields: Fields) -> int | None:
    if architecture is Architecture.LLAMA:
        return None
    window = fields.optional_integer("sliding_window")
    if architecture is Architecture.MISTRAL or window is None:
        return window
    if not fields.flag("use_sliding_window", default=False):
        return None
    # Qwen: only the layers from max_window_layers on slide.
    first_sliding = fields.integer("max_window_layers", 28)
    return window if first_sliding < fields.integer("num_hidden_layers") else None


def _rope(fields: Fields) -> RopeConfig:
    theta = fields.number("rope_theta", _DEFAULT_THETA)
    parameters = fields.nested("rope_parameters") or fields.nested("rope_scaling")
    if parameters is None:
        return RopeConfig(theta=theta)
    theta = parameters.number("rope_theta", theta)
    if parameters.number("partial_rotary_factor", 1.0) != 1.0:
        raise ModelError(f"{parameters.file}: partial_rotary_factor other than 1 is not supported")
    kind = parameters.text("rope_type", parameters.text("type", "default"))
    match kind:
        case "default":
            return RopeConfig(theta=theta)
        case "linear":
            scaling = LinearScaling(factor=_positive(parameters, "factor"))
            return RopeConfig(theta=theta, scaling=scaling)
        case "llama3":
            return RopeConfig(theta=theta, scaling=_llama3(parameters, fields))
    raise ModelError(
        f"{parameters.file}: RoPE scaling {kind!r} is not supported; "
        f"supported are default, linear and llama3"
    )


def _llama3(parameters: Fields, fields: Fields) -> Llama3Scaling:
    low = _positive(parameters, "low_freq_factor")
    high = _positive(parameters, "high_freq_factor")
    if high <= low:
        raise parameters.wrong("high_freq_factor", f"above low_freq_factor ({low})")
    original = "original_max_position_embeddings"
    return Llama3Scaling(
        factor=_positive(parameters, "factor"),
        low_freq_factor=low,
        high_freq_factor=high,
        original_max_position_embeddings=parameters.integer(original, fields.integer(original, 0))
        or fields.integer("max_position_embeddings"),
    )


def _positive(parameters: Fields, key: str) -> float:
    value = parameters.number(key)
    if value <= 0:
        raise parameters.wrong(key, "positive")
    return value


def _special_tokens(directory: Path, fields: Fields) -> tuple[tuple[int, ...], int | None]:
    eos = fields.integers("eos_token_id")
    path = directory / "generation_config.json"
    if path.exists():
        generation = Fields(str(path), read_json_object(path))
        # Either file may know an end token that the other lacks (Llama 3 and Qwen 2.5 chat models).
        eos = tuple(dict.fromkeys((*generation.integers("eos_token_id"), *eos)))
    bos = fields.integers("bos_token_id")
    return eos, bos[0] if bos else None
