"""The metadata of a GGUF file as a ModelConfig, without torch."""

from forebay.errors import ModelError
from forebay.exec.config_fields import Fields
from forebay.exec.gguf_file import GgufFile
from forebay.exec.model_config import (
    Architecture,
    AttentionBias,
    LinearScaling,
    ModelConfig,
    RopeConfig,
)

# Mistral models are of architecture `llama` in GGUF.
_ARCHITECTURES = {item.value: item for item in Architecture if item is not Architecture.MISTRAL}


def read_gguf_config(file: GgufFile) -> ModelConfig:
    """The model that `file` describes.

    Raises ModelError naming file and key for anything missing, malformed or not computed here.
    """
    fields = Fields(str(file.path), file.metadata)
    name = fields.text("general.architecture")
    if name not in _ARCHITECTURES:
        raise ModelError(
            f"{file.path}: architecture {name!r} is not supported; "
            f"supported are {', '.join(_ARCHITECTURES)}"
        )
    if fields.integer(f"{name}.expert_count", 0):
        raise ModelError(f"{file.path}: mixture-of-experts models are not supported")
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None:
        raise ModelError(f"{file.path}: tensor token_embd.weight is missing")
    hidden_size = fields.integer(f"{name}.embedding_length")
    num_heads = fields.integer(f"{name}.attention.head_count")
    if num_heads <= 0:
        raise fields.wrong(f"{name}.attention.head_count", "positive")
    head_dim = fields.integer(f"{name}.attention.key_length", hidden_size // num_heads)
    _check_whole_head_rotates(fields, name, head_dim)
    bos = fields.integers("tokenizer.ggml.bos_token_id")
    try:
        return ModelConfig(
            architecture=_ARCHITECTURES[name],
            vocab_size=embedding.shape[0],
            hidden_size=hidden_size,
            intermediate_size=fields.integer(f"{name}.feed_forward_length"),
            num_layers=fields.integer(f"{name}.block_count"),
            num_heads=num_heads,
            num_kv_heads=fields.integer(f"{name}.attention.head_count_kv", num_heads),
            head_dim=head_dim,
            rms_norm_eps=fields.number(f"{name}.attention.layer_norm_rms_epsilon"),
            rope=_rope(fields, name),
            tie_word_embeddings="output.weight" not in file.tensors,
            max_position_embeddings=fields.integer(f"{name}.context_length"),
            qk_norm=name == Architecture.QWEN3,
            attention_bias=_attention_bias(file),
            mlp_bias="blk.0.ffn_up.bias" in file.tensors,
            sliding_window=fields.optional_integer(f"{name}.attention.sliding_window"),
            eos_token_ids=_end_tokens(fields),
            bos_token_id=bos[0] if bos else None,
        )
    except ModelError as error:
        if str(file.path) in str(error):
            raise
        raise ModelError(f"{file.path}: {error}") from None


def _check_whole_head_rotates(fields: Fields, name: str, head_dim: int) -> None:
    for key in ("attention.value_length", "rope.dimension_count"):
        size = fields.integer(f"{name}.{key}", head_dim)
        if size != head_dim:
            raise ModelError(
                f"{fields.file}: {name}.{key} is {size}; only models in which it equals the head "
                f"size ({head_dim}) are supported"
            )


def _attention_bias(file: GgufFile) -> AttentionBias:
    if "blk.0.attn_q.bias" not in file.tensors:
        return AttentionBias.NONE
    if "blk.0.attn_output.bias" in file.tensors:
        return AttentionBias.QKV_AND_OUTPUT
    return AttentionBias.QKV


def _rope(fields: Fields, name: str) -> RopeConfig:
    """Base and linear scaling; Llama 3.1 scaling comes as the tensor `rope_freqs.weight`."""
    theta = fields.number(f"{name}.rope.freq_base", 10_000.0)
    kind = fields.text(f"{name}.rope.scaling.type", "none")
    # Written by converters before `rope.scaling.*` existed.
    factor = fields.number(f"{name}.rope.scale_linear", 1.0)
    if kind == "linear":
        factor = fields.number(f"{name}.rope.scaling.factor")
    elif kind != "none":
        raise ModelError(
            f"{fields.file}: RoPE scaling {kind!r} is not supported; supported are none and linear"
        )
    if factor <= 0:
        raise ModelError(f"{fields.file}: the RoPE scaling factor is {factor}, should be positive")
    scaling = None if factor == 1.0 else LinearScaling(factor=factor)
    return RopeConfig(theta=theta, scaling=scaling)


def _end_tokens(fields: Fields) -> tuple[int, ...]:
    """End of text, of turn and of message: whichever the file names."""
    found = [
        token
        for kind in ("eos", "eot", "eom")
        for token in fields.integers(f"tokenizer.ggml.{kind}_token_id")
    ]
    return tuple(dict.fromkeys(found))
