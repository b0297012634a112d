"""A model over a paged KV cache: one flat batch in, logits out.

Decoding rows and chunks of prompts differ only in how many tokens of a row there are. Rows meet
in attention alone, and there only through their block tables.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from forebay.exec.batch import IntArray
from forebay.exec.decoder import Attend
from forebay.exec.kv_tensors import KvTensors
from forebay.exec.paged_attention import paged_attention


class Model(Protocol):
    """What is asked of a model; `forebay.exec.decoder.Decoder` is one."""

    @property
    def device(self) -> torch.device:
        """Where it computes."""

    def forward(self, token_ids: Tensor, positions: Tensor, attend: Attend, /) -> Tensor:
        """Hidden states (T, hidden_size) of int64 `token_ids` and `positions` (T,)."""

    def logits(self, hidden: Tensor, /) -> Tensor:
        """Float32 logits (N, vocab_size) of hidden states (N, hidden_size)."""


@dataclass(slots=True, frozen=True, kw_only=True)
class FlatBatch:
    """Tokens to compute, and whose logits are wanted.

    `token_ids`, `positions`, `token_rows` (T,) int32; `slots` (T,) int64: where keys and values
    go; `block_tables` (R, max_blocks) int32; `sample_at` (N,) int32: places among the T tokens.
    """

    token_ids: IntArray
    positions: IntArray
    token_rows: IntArray
    slots: NDArray[np.int64]
    block_tables: IntArray
    sample_at: IntArray


class PagedModel:
    """A model and the pools that its keys and values live in."""

    def __init__(self, *, model: Model, pools: KvTensors, scale: float | None = None) -> None:
        """`scale`: what attention scores are multiplied with; head_dim ** -0.5 unless given."""
        self._model = model
        self.pools = pools
        self._scale = pools.layout.head_dim**-0.5 if scale is None else scale

    @property
    def device(self) -> torch.device:
        """Where it computes."""
        return self._model.device

    @torch.inference_mode()
    def logits(self, batch: FlatBatch) -> Tensor | None:
        """Computes all tokens; logits (N, vocab_size), or None when none are wanted.

        When it returns, the time of the work has passed, on any device.
        """
        token_ids = self._tensor(batch.token_ids).long()
        positions = self._tensor(batch.positions)
        hidden = self._model.forward(token_ids, positions.long(), self._attend(batch, positions))
        logits = None
        if len(batch.sample_at) == len(batch.token_ids):
            logits = self._model.logits(hidden)
        elif len(batch.sample_at):
            logits = self._model.logits(hidden.index_select(0, self._tensor(batch.sample_at)))
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return logits

    def _attend(self, batch: FlatBatch, positions: Tensor) -> Attend:
        pools = self.pools
        block_tables = self._tensor(batch.block_tables)
        token_rows = self._tensor(batch.token_rows)
        slots = self._tensor(batch.slots)

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor, /) -> Tensor:
            # All rows are written first: one may read prefix blocks that another fills here.
            pools.write(layer, k, v, slots)
            keys, values = pools.keys(layer), pools.values(layer)
            return paged_attention(
                q, keys, values, block_tables, token_rows, positions, self._scale
            )

        return attend

    def _tensor(self, array: IntArray | NDArray[np.int64]) -> Tensor:
        """An array where the model is; on the CPU it shares the array's memory."""
        return torch.from_numpy(array).to(self.device)
