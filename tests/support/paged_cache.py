"""A paged KV cache over the reference attention: the simplest thing a decoder can attend to."""

from collections.abc import Sequence

import torch
from torch import Tensor

from forebay.exec.decoder import Attend, Decoder
from forebay.exec.model_config import ModelConfig
from forebay.exec.reference_attention import reference_paged_attention


class PagedCache:
    """Caches of all layers, (num_blocks, num_kv_heads, block_size, head_dim) each."""

    def __init__(
        self,
        config: ModelConfig,
        *,
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        shape = (num_blocks, config.num_kv_heads, block_size, config.head_dim)
        # NaN: reading a slot that nobody wrote must show.
        self.k = [torch.full(shape, torch.nan, dtype=dtype) for _ in range(config.num_layers)]
        self.v = [torch.full(shape, torch.nan, dtype=dtype) for _ in range(config.num_layers)]
        self.block_size = block_size
        self.scale = config.head_dim**-0.5

    def attend(self, block_tables: Tensor, token_rows: Tensor, positions: Tensor) -> Attend:
        """What `Decoder.forward` calls for this batch: write all rows, then attend."""
        blocks = block_tables[token_rows.long(), positions.long() // self.block_size].long()
        offsets = positions.long() % self.block_size

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            self.k[layer][blocks, :, offsets] = k
            self.v[layer][blocks, :, offsets] = v
            return reference_paged_attention(
                *(q, self.k[layer], self.v[layer], block_tables, token_rows, positions),
                scale=self.scale,
            )

        return attend


def full_logits(decoder: Decoder, token_ids: Sequence[int]) -> Tensor:
    """Logits at every position of one sequence computed in one step: (num_tokens, vocab_size)."""
    num_blocks = -(-len(token_ids) // 16)
    cache = PagedCache(decoder.config, num_blocks=num_blocks, block_size=16, dtype=decoder.dtype)
    tables = torch.arange(len(cache.k[0]), dtype=torch.int32).unsqueeze(0)
    positions = torch.arange(len(token_ids))
    rows = torch.zeros(len(token_ids), dtype=torch.int32)
    attend = cache.attend(tables, rows, positions.int())
    return decoder.logits(decoder.forward(torch.tensor(token_ids), positions, attend))
