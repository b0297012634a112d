"""The oracle of paged attention against torch's own attention over plain, contiguous sequences."""

import torch
import torch.nn.functional as F

from forebay.exec.reference_attention import reference_paged_attention

_NUM_HEADS, _NUM_KV_HEADS, _HEAD_DIM, _BLOCK_SIZE = 6, 2, 16, 4


def test_equals_attention_over_contiguous_sequences() -> None:
    torch.manual_seed(3)
    lengths, num_new = [11, 1, 8, 30], [3, 1, 8, 1]  # a chunk, a first token, a prompt, a decode
    tables = torch.randperm(40)[: 4 * 8].view(4, 8).int()
    k_cache, v_cache = (
        torch.full((40, _NUM_KV_HEADS, _BLOCK_SIZE, _HEAD_DIM), torch.nan) for _ in range(2)
    )
    q_rows, expected, rows, positions = [], [], [], []
    for row, (length, new) in enumerate(zip(lengths, num_new, strict=True)):
        q = torch.randn(new, _NUM_HEADS, _HEAD_DIM)
        k, v = (torch.randn(length, _NUM_KV_HEADS, _HEAD_DIM) for _ in range(2))
        for position in range(length):
            block, offset = tables[row, position // _BLOCK_SIZE], position % _BLOCK_SIZE
            k_cache[block, :, offset] = k[position]
            v_cache[block, :, offset] = v[position]
        mask = torch.ones(length, length).tril().bool()[-new:]
        attended = F.scaled_dot_product_attention(
            *(item.transpose(0, 1) for item in (q, k, v)),
            attn_mask=mask,
            scale=0.3,
            enable_gqa=True,
        )
        q_rows.append(q)
        expected.append(attended.transpose(0, 1))
        rows += [row] * new
        positions += range(length - new, length)
    shuffled = torch.randperm(len(rows))
    found = reference_paged_attention(
        torch.cat(q_rows)[shuffled],
        k_cache,
        v_cache,
        tables,
        torch.tensor(rows, dtype=torch.int32)[shuffled],
        torch.tensor(positions, dtype=torch.int32)[shuffled],
        scale=0.3,
    )
    torch.testing.assert_close(found, torch.cat(expected)[shuffled], atol=1e-6, rtol=1e-5)
