"""What one call of the attention kernel is given, and how a thread's working memory is laid out."""

from typing import NamedTuple

from forebay.exec.attention_tiles import KEY_TILE
from forebay.exec.simd import LANES, VECTOR_BYTES, inlined, load_i64


class Arguments(NamedTuple):
    """What one call reads: addresses, strides in bytes and counts, in this order, int64 each."""

    query: int
    query_stride: int
    keys: int
    values: int
    block_stride: int
    tables: int
    table_stride: int
    token_rows: int
    positions: int
    out: int
    scratch: int
    scratch_stride: int
    counters: int
    """Two int64, both zero before the call: next thread, next unit."""
    scale: int
    """Address of one float32: the softmax scale times log2(e)."""
    num_tokens: int
    tile_tokens: int
    num_kv_heads: int
    group: int
    """Query heads per key-value head."""
    head_dim: int
    block_size: int


class Scratch(NamedTuple):
    """Addresses of one thread's working memory, for `num_rows` (token, query head) pairs."""

    queries: int
    sums: int
    scores: int
    highest: int
    weights: int
    keys: int
    places: int
    lengths: int


class Run(NamedTuple):
    """Neighbouring tokens of one sequence, at one key-value head."""

    first_token: int
    num_rows: int
    head: int
    table: int


def scratch_bytes(num_rows: int, head_dim: int) -> int:
    """Bytes of working memory for one thread, a multiple of a cache line."""
    row_floats = 2 * head_dim + KEY_TILE + 2 * LANES + 1
    floats = num_rows * row_floats + KEY_TILE * head_dim + 2 * KEY_TILE // LANES
    return -(-4 * floats // VECTOR_BYTES) * VECTOR_BYTES


@inlined
def lay_out(base: int, num_rows: int, head_dim: int) -> Scratch:
    """Divides `scratch_bytes` of memory at `base`."""
    sums = base + 4 * num_rows * head_dim
    scores = sums + 4 * num_rows * head_dim
    highest = scores + 4 * num_rows * KEY_TILE
    weights = highest + VECTOR_BYTES * num_rows
    keys = weights + VECTOR_BYTES * num_rows
    places = keys + 4 * KEY_TILE * head_dim
    lengths = places + 8 * KEY_TILE // LANES
    return Scratch(base, sums, scores, highest, weights, keys, places, lengths)


@inlined
def read_arguments(arguments: int) -> Arguments:
    """The record at an address."""
    return Arguments(
        load_i64(arguments),
        load_i64(arguments + 8),
        load_i64(arguments + 16),
        load_i64(arguments + 24),
        load_i64(arguments + 32),
        load_i64(arguments + 40),
        load_i64(arguments + 48),
        load_i64(arguments + 56),
        load_i64(arguments + 64),
        load_i64(arguments + 72),
        load_i64(arguments + 80),
        load_i64(arguments + 88),
        load_i64(arguments + 96),
        load_i64(arguments + 104),
        load_i64(arguments + 112),
        load_i64(arguments + 120),
        load_i64(arguments + 128),
        load_i64(arguments + 136),
        load_i64(arguments + 144),
        load_i64(arguments + 152),
    )
