"""Rotary position embedding (arXiv 2104.09864) with its linear and Llama 3.1 stretchings.

Halves are rotated against each other, as Hugging Face checkpoints expect: dimension i of a head
pairs with dimension i + head_dim / 2.
"""

import math

import torch
from torch import Tensor

from forebay.exec.model_config import LinearScaling, Llama3Scaling, RopeConfig


class RopeTable:
    """Cosines and sines of every position below `max_positions`, computed once.

    `cos` and `sin`: (max_positions, head_dim / 2).
    """

    def __init__(self, inverse_frequencies: Tensor, *, max_positions: int, dtype: torch.dtype):
        # float32 positions times float32 frequencies, as transformers does: a table from exact
        # angles would differ from it by 2e-4 near position 8,000.
        positions = torch.arange(max_positions, dtype=torch.float32)
        angles = torch.outer(positions.to(inverse_frequencies.device), inverse_frequencies)
        self.cos = angles.cos().to(dtype)
        self.sin = angles.sin().to(dtype)

    def at(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines for `positions` (num_tokens,), each (num_tokens, 1, head_dim / 2)."""
        cos = self.cos.index_select(0, positions)
        return cos.unsqueeze(1), self.sin.index_select(0, positions).unsqueeze(1)


def inverse_frequencies(rope: RopeConfig, head_dim: int) -> Tensor:
    """Radians per position of each pair of dimensions: (head_dim / 2,) float32."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
    plain = 1.0 / (rope.theta**exponents)
    match rope.scaling:
        case None:
            return plain
        case LinearScaling(factor=factor):
            return plain / factor
        case Llama3Scaling() as scaling:
            return _llama3(plain, scaling)


def rotate_(heads: Tensor, cos: Tensor, sin: Tensor) -> None:
    """Rotate `heads` (num_tokens, num_heads, head_dim) in place by the angles of their positions.

    Only products, sums and differences: they round alike in vector and scalar code, so a row's
    result does not depend on the rows beside it.
    """
    half = heads.shape[-1] // 2
    first, second = heads[..., :half], heads[..., half:]
    first_sin = first * sin
    second_sin = second * sin
    first.mul_(cos).sub_(second_sin)
    second.mul_(cos).add_(first_sin)


def _llama3(plain: Tensor, scaling: Llama3Scaling) -> Tensor:
    """Frequencies of Llama 3.1: `ramp` is the share of each that is kept unstretched.

    A pair is judged by its turns over the original context: all kept from `high_freq_factor`
    turns on, all divided by `factor` up to `low_freq_factor`, linear between.
    """
    turns = plain * (scaling.original_max_position_embeddings / (2 * math.pi))
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    ramp = ((turns - low) / (high - low)).clamp_(0.0, 1.0)
    return plain * ramp + plain / scaling.factor * (1.0 - ramp)
