"""What a model is, in numbers: read from its files once, used by decoder and planner alike.

No torch here, so that memory can be reckoned without it.
"""

import enum
from dataclasses import dataclass

from forebay.errors import ModelError

_FLOAT32_BYTES = 4


class Architecture(enum.StrEnum):
    """The decoders of the Llama family that are computed, by their name in `model_type`."""

    LLAMA = "llama"
    MISTRAL = "mistral"
    QWEN2 = "qwen2"
    QWEN3 = "qwen3"


class DType(enum.StrEnum):
    """The number format of weights, activations and KV."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"

    @property
    def num_bytes(self) -> int:
        """Bytes of one number."""
        return _FLOAT32_BYTES if self is DType.FLOAT32 else 2


class AttentionBias(enum.Enum):
    """Which products of attention add a bias."""

    NONE = enum.auto()
    QKV = enum.auto()
    QKV_AND_OUTPUT = enum.auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearScaling:
    """Positions divided by `factor` (position interpolation, arXiv 2306.15595)."""

    factor: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Llama3Scaling:
    """Low frequencies divided by `factor`, high ones kept, smooth between (Llama 3.1)."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeConfig:
    """Rotary position embedding over the whole head: base and how it is stretched."""

    theta: float
    scaling: LinearScaling | Llama3Scaling | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """One decoder-only model. Raises ModelError when the numbers contradict each other."""

    architecture: Architecture
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rope: RopeConfig
    tie_word_embeddings: bool
    max_position_embeddings: int
    qk_norm: bool = False
    attention_bias: AttentionBias = AttentionBias.NONE
    mlp_bias: bool = False
    sliding_window: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    bos_token_id: int | None = None

    def __post_init__(self) -> None:
        faults = [
            f"{name} is {getattr(self, name)}, should be positive"
            for name in _POSITIVE
            if not getattr(self, name) > 0
        ]
        if self.rope.theta <= 0:
            faults.append(f"the RoPE base is {self.rope.theta}, should be positive")
        if self.num_kv_heads > 0 and self.num_heads % self.num_kv_heads:
            faults.append(
                f"{self.num_heads} attention heads cannot share {self.num_kv_heads} KV heads evenly"
            )
        if self.head_dim % 2:
            faults.append(f"head_dim is {self.head_dim}, RoPE needs an even number")
        if faults:
            raise ModelError("; ".join(faults))

    @property
    def q_size(self) -> int:
        """Width of all queries of one token."""
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Width of all keys, or of all values, of one token."""
        return self.num_kv_heads * self.head_dim

    @property
    def max_exact_len(self) -> int:
        """Longest sequence that is computed as the model was trained, in tokens."""
        if self.sliding_window is None:
            return self.max_position_embeddings
        return min(self.max_position_embeddings, self.sliding_window)

    def check_max_model_len(self, max_model_len: int) -> None:
        """Promise that `max_model_len` tokens are computed exactly; raises ModelError if not.

        Full attention equals sliding-window attention up to the window, so a model with a window
        is served up to that length.
        """
        if max_model_len <= self.max_exact_len:
            return
        if self.max_exact_len == self.sliding_window:
            raise ModelError(
                f"this model attends to the last {self.sliding_window} tokens only (sliding "
                f"window), which is not computed beyond that length: set max_model_len to at most "
                f"{self.sliding_window} (it is {max_model_len})"
            )
        raise ModelError(
            f"this model knows {self.max_position_embeddings} positions: set max_model_len to at "
            f"most {self.max_position_embeddings} (it is {max_model_len})"
        )

    def kv_bytes_per_token(self, dtype_bytes: int) -> int:
        """Bytes of keys and values that one token keeps over all layers."""
        return 2 * self.num_layers * self.kv_size * dtype_bytes


_POSITIVE = (
    *("vocab_size", "hidden_size", "intermediate_size", "num_layers", "num_heads"),
    *("num_kv_heads", "head_dim", "rms_norm_eps", "max_position_embeddings"),
)


def parameter_count(config: ModelConfig) -> int:
    """Numbers in all weights; a tied head counts once, QK norms once per head."""
    hidden, q, kv = config.hidden_size, config.q_size, config.kv_size
    attention = hidden * (q + 2 * kv) + q * hidden
    if config.attention_bias is not AttentionBias.NONE:
        attention += q + 2 * kv
    if config.attention_bias is AttentionBias.QKV_AND_OUTPUT:
        attention += hidden
    if config.qk_norm:
        attention += q + kv  # repeated per head
    mlp = 3 * hidden * config.intermediate_size
    if config.mlp_bias:
        mlp += 2 * config.intermediate_size + hidden
    norms = 2 * hidden
    embeddings = config.vocab_size * hidden * (1 if config.tie_word_embeddings else 2)
    return embeddings + config.num_layers * (attention + mlp + norms) + hidden


def product_shapes(config: ModelConfig) -> tuple[tuple[int, int], ...]:
    """(out, in) of every matrix product as it is computed: the fused ones of a layer, the head."""
    hidden, mid = config.hidden_size, config.intermediate_size
    return (
        (config.q_size + 2 * config.kv_size, hidden),
        (hidden, config.q_size),
        (2 * mid, hidden),
        (hidden, mid),
        (config.vocab_size, hidden),
    )


def weight_bytes(config: ModelConfig, dtype: DType) -> int:
    """Bytes of all weights as the decoder holds them: every tensor in `dtype`, none quantised.

    A product keeps its weight in a layout of its own, so a tied head counts beside the embedding.
    """
    count = parameter_count(config)
    if config.tie_word_embeddings:
        count += config.vocab_size * config.hidden_size
    return count * dtype.num_bytes


def rope_table_bytes(config: ModelConfig, max_model_len: int, dtype: DType) -> int:
    """Bytes of the cosine and sine tables, held beside the weights."""
    return max_model_len * config.head_dim * dtype.num_bytes


def activation_bytes(
    config: ModelConfig, *, max_num_batched_tokens: int, max_num_seqs: int, dtype: DType
) -> int:
    """Estimate of the most bytes that one forward holds besides weights, tables and KV.

    The larger of two moments. In a layer, per batched token: residual and normed or output row
    (2 x hidden), and either the fused q, k, v with the attention result and rotation scratch
    (2 x (q + 2 kv)), or the fused gate and up with their product and its scratch
    (4 x intermediate). At the head: one hidden row per batched token, and per sequence float32
    logits twice (the sampler works on a copy), once more in `dtype` where that is not float32.
    """
    row = 2 * config.hidden_size
    attention = 2 * (config.q_size + 2 * config.kv_size)
    mlp = 4 * config.intermediate_size
    in_layer = max_num_batched_tokens * (row + max(attention, mlp)) * dtype.num_bytes
    logit_bytes = 2 * _FLOAT32_BYTES
    if dtype is not DType.FLOAT32:
        logit_bytes += dtype.num_bytes
    rows = min(max_num_seqs, max_num_batched_tokens)
    at_head = max_num_batched_tokens * config.hidden_size * dtype.num_bytes
    at_head += rows * (config.vocab_size * logit_bytes + config.hidden_size * dtype.num_bytes)
    return max(in_layer, at_head)
