"""Attention over block tables in plain torch: slow, obvious, the oracle of the fast kernels."""

import torch
from torch import Tensor


def reference_paged_attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_tables: Tensor,
    token_rows: Tensor,
    positions: Tensor,
    scale: float,
) -> Tensor:
    """Causal attention of each token over its own sequence, (num_tokens, num_heads, head_dim).

    Token t belongs to row `token_rows[t]` and attends to positions 0 to `positions[t]` of it.
    Position p of row r is at offset `p % block_size` of block `block_tables[r, p // block_size]`.

    Shapes: `q` (num_tokens, num_heads, head_dim); `k_cache` and `v_cache` (num_blocks,
    num_kv_heads, block_size, head_dim), of one layer; `block_tables` (num_rows, max_blocks) int32;
    `token_rows` and `positions` (num_tokens,) int32. Query heads share KV heads in equal groups.
    """
    result = torch.empty_like(q, memory_format=torch.contiguous_format)
    for row in sorted(set(token_rows.tolist())):
        tokens = (token_rows == row).nonzero().squeeze(1)
        result[tokens] = _attend_in_row(
            *(q[tokens], k_cache, v_cache, block_tables[row], positions[tokens]), scale
        ).to(q.dtype)
    return result


def _attend_in_row(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, table: Tensor, positions: Tensor, scale: float
) -> Tensor:
    num_tokens, num_heads, head_dim = q.shape
    num_kv_heads = k_cache.shape[1]
    num_kept = int(positions.max()) + 1
    keys = _kept(k_cache, table, num_kept)
    values = _kept(v_cache, table, num_kept)
    # (num_kv_heads, heads per KV head, num_tokens, head_dim)
    grouped = q.float().view(num_tokens, num_kv_heads, num_heads // num_kv_heads, head_dim)
    grouped = grouped.permute(1, 2, 0, 3)
    scores = grouped @ keys.transpose(1, 2).unsqueeze(1) * scale
    is_later = torch.arange(num_kept, device=q.device) > positions.unsqueeze(1)
    weights = scores.masked_fill(is_later, -torch.inf).softmax(-1)
    attended = weights @ values.unsqueeze(1)
    return attended.permute(2, 0, 1, 3).reshape(num_tokens, num_heads, head_dim)


def _kept(cache: Tensor, table: Tensor, num_kept: int) -> Tensor:
    """The first `num_kept` positions of one row: (num_kv_heads, num_kept, head_dim) float32."""
    num_blocks = -(-num_kept // cache.shape[2])
    blocks = cache.index_select(0, table[:num_blocks].long()).float()
    return blocks.transpose(0, 1).flatten(1, 2)[:, :num_kept]
