"""The Llama-family decoder over a flat batch: tokens of many sequences, one row each.

Rows meet only in `attend`. Everything else is computed row by row, and each row's bits are the
same whatever rows stand beside it, provided that the products keep that promise too.
"""

from collections.abc import Callable
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from forebay.exec.fused import add_norm_, rotate_, silu_mul
from forebay.exec.model_config import DType, ModelConfig
from forebay.exec.model_source import ModelSource
from forebay.exec.rope import RopeTable, inverse_frequencies
from forebay.exec.weights import (
    DecoderWeights,
    LayerWeights,
    Linear,
    Products,
    load_weights,
)


class Attend(Protocol):
    """Keeps the keys and values of one layer and attends over what is kept."""

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor, /) -> Tensor:
        """Attention results (num_tokens, num_heads, head_dim) in the order of the rows of `q`.

        `q` (num_tokens, num_heads, head_dim), `k` and `v` (num_tokens, num_kv_heads, head_dim)
        are already rotated. They are views of one fused tensor: heads are contiguous, rows are
        not adjacent. `k` and `v` of all rows are to be written before any row attends.
        """


class Decoder:
    """One model in memory, ready to compute. Holds no KV and no request."""

    def __init__(
        self,
        *,
        config: ModelConfig,
        weights: DecoderWeights,
        max_model_len: int,
    ) -> None:
        """Raises ModelError when `max_model_len` is more than the model computes exactly."""
        config.check_max_model_len(max_model_len)
        self.config = config
        self.weights = weights
        frequencies = inverse_frequencies(config.rope, config.head_dim)
        if weights.rope_freq_factors is not None:
            frequencies = frequencies / weights.rope_freq_factors.to(frequencies.device)
        embedding = weights.embedding
        self._rope = RopeTable(
            frequencies.to(embedding.device), max_positions=max_model_len, dtype=embedding.dtype
        )

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.weights.embedding.device

    @property
    def dtype(self) -> torch.dtype:
        """The type of weights and activations, and so of queries, keys and values."""
        return self.weights.embedding.dtype

    @torch.inference_mode()
    def forward(self, token_ids: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """Hidden states after the final norm, (num_tokens, hidden_size).

        `token_ids` and `positions`: (num_tokens,) int64, every position below `max_model_len`.
        `attend` is called once per layer, in order.
        """
        cos, sin = self._rope.at(positions)
        hidden = self.weights.embedding.index_select(0, token_ids)
        eps = self.config.rms_norm_eps
        delta: Tensor | None = None
        for index, layer in enumerate(self.weights.layers):
            normed = add_norm_(hidden, delta, layer.attn_norm, eps)
            q, k, v = self._qkv(layer, normed, cos, sin)
            attended = attend(index, q, k, v).reshape(len(hidden), -1)
            normed = add_norm_(hidden, layer.output(attended), layer.mlp_norm, eps)
            delta = layer.down(silu_mul(layer.gate_up(normed)))
        return add_norm_(hidden, delta, self.weights.final_norm, eps)

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        """Scores of all tokens, (num_rows, vocab_size) float32, for rows of `forward`'s result."""
        return self.weights.lm_head(hidden).float()

    def _qkv(
        self, layer: LayerWeights, normed: Tensor, cos: Tensor, sin: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        fused = layer.qkv(normed)
        num_heads, num_kv_heads = self.config.num_heads, self.config.num_kv_heads
        heads = fused.view(len(normed), num_heads + 2 * num_kv_heads, self.config.head_dim)
        # Queries and keys lie side by side, so one pass norms and rotates both.
        q_and_k = heads[:, : num_heads + num_kv_heads]
        if layer.qk_norm is not None:
            unit = F.rms_norm(q_and_k, q_and_k.shape[-1:], None, self.config.rms_norm_eps)
            torch.mul(unit, layer.qk_norm, out=q_and_k)
        rotate_(q_and_k, cos, sin)
        k = heads[:, num_heads : num_heads + num_kv_heads]
        return heads[:, :num_heads], k, heads[:, num_heads + num_kv_heads :]


def load_decoder(
    source: ModelSource,
    *,
    max_model_len: int,
    dtype: DType = DType.FLOAT32,
    device: str = "cpu",
    linear: Linear = F.linear,
    prepare: Callable[[Tensor], Tensor] = lambda weight: weight,
) -> Decoder:
    """Load the model of `source` onto `device`, `cpu` or `cuda`.

    `linear` computes all matrix products; it gets each weight as `prepare` returned it, which is
    called once per product while loading.

    Raises ModelError for broken files and for a `max_model_len` beyond the model's own length.
    """
    # Refused before the weights are read, which may take minutes.
    source.config.check_max_model_len(max_model_len)
    weights = load_weights(
        source,
        dtype=dtype,
        device=torch.device(device),
        products=Products(linear=linear, prepare=prepare),
    )
    return Decoder(config=source.config, weights=weights, max_model_len=max_model_len)
