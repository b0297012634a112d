"""The innermost loops of attention, each over a few rows that stay in registers.

A row is one query head. However many rows a loop takes together, each row's multiply-adds are the
same and in the same order: score chains run over the head dimension, sums run over the keys.
Addresses are integers; `dim` is the head dimension and the row length of queries and sums.
"""

from forebay.exec.simd import (
    LANES,
    VECTOR_BYTES,
    Vector,
    fma,
    fma_f32,
    inlined,
    load,
    load_f32,
    max_lanes,
    mul,
    splat,
    store,
    store_f32,
)

KEY_TILE = 64
"""Keys whose scores are held at once: the row length of scores."""


@inlined
def score_6(queries: int, keys: int, step: int, dim: int, scores: int) -> None:
    """Six rows against 16 keys, `step` bytes a dimension apart: twelve AVX2 registers of sums."""
    row = 4 * dim
    s0 = s1 = s2 = s3 = s4 = s5 = splat(0.0)
    for d in range(dim):
        k = load(keys + d * step)
        q = queries + 4 * d
        s0 = fma(k, splat(load_f32(q)), s0)
        s1 = fma(k, splat(load_f32(q + row)), s1)
        s2 = fma(k, splat(load_f32(q + 2 * row)), s2)
        s3 = fma(k, splat(load_f32(q + 3 * row)), s3)
        s4 = fma(k, splat(load_f32(q + 4 * row)), s4)
        s5 = fma(k, splat(load_f32(q + 5 * row)), s5)
    store(scores, s0)
    store(scores + 4 * KEY_TILE, s1)
    store(scores + 8 * KEY_TILE, s2)
    store(scores + 12 * KEY_TILE, s3)
    store(scores + 16 * KEY_TILE, s4)
    store(scores + 20 * KEY_TILE, s5)


@inlined
def score_3(queries: int, near: int, far: int, step: int, dim: int, scores: int) -> None:
    """Three rows against two times 16 keys: a lone query with its group of heads."""
    row = 4 * dim
    s0 = s1 = s2 = t0 = t1 = t2 = splat(0.0)
    for d in range(dim):
        k = load(near + d * step)
        m = load(far + d * step)
        q0 = splat(load_f32(queries + 4 * d))
        q1 = splat(load_f32(queries + 4 * d + row))
        q2 = splat(load_f32(queries + 4 * d + 2 * row))
        s0 = fma(k, q0, s0)
        t0 = fma(m, q0, t0)
        s1 = fma(k, q1, s1)
        t1 = fma(m, q1, t1)
        s2 = fma(k, q2, s2)
        t2 = fma(m, q2, t2)
    store(scores, s0)
    store(scores + VECTOR_BYTES, t0)
    store(scores + 4 * KEY_TILE, s1)
    store(scores + 4 * KEY_TILE + VECTOR_BYTES, t1)
    store(scores + 8 * KEY_TILE, s2)
    store(scores + 8 * KEY_TILE + VECTOR_BYTES, t2)


@inlined
def score_1(queries: int, keys: int, step: int, dim: int, scores: int) -> None:
    """One row against 16 keys."""
    s0 = splat(0.0)
    for d in range(dim):
        s0 = fma(load(keys + d * step), splat(load_f32(queries + 4 * d)), s0)
    store(scores, s0)


@inlined
def scale_sums(sums: int, dim: int, factor: Vector) -> None:
    """Multiplies one row's sums by `factor`, the same in all lanes."""
    whole = dim - dim % LANES
    for d in range(0, whole, LANES):
        store(sums + 4 * d, mul(load(sums + 4 * d), factor))
    scalar = max_lanes(factor)
    for d in range(whole, dim):
        store_f32(sums + 4 * d, load_f32(sums + 4 * d) * scalar)


@inlined
def add_3(scores: int, values: int, sums: int, dim: int, count: int) -> None:
    """Adds `count` weighted values onto 32 dimensions of three rows."""
    row = 4 * dim
    a0 = load(sums)
    a1 = load(sums + VECTOR_BYTES)
    b0 = load(sums + row)
    b1 = load(sums + row + VECTOR_BYTES)
    c0 = load(sums + 2 * row)
    c1 = load(sums + 2 * row + VECTOR_BYTES)
    for key in range(count):
        v0 = load(values + key * row)
        v1 = load(values + key * row + VECTOR_BYTES)
        a = splat(load_f32(scores + 4 * key))
        b = splat(load_f32(scores + 4 * (key + KEY_TILE)))
        c = splat(load_f32(scores + 4 * (key + 2 * KEY_TILE)))
        a0 = fma(v0, a, a0)
        a1 = fma(v1, a, a1)
        b0 = fma(v0, b, b0)
        b1 = fma(v1, b, b1)
        c0 = fma(v0, c, c0)
        c1 = fma(v1, c, c1)
    store(sums, a0)
    store(sums + VECTOR_BYTES, a1)
    store(sums + row, b0)
    store(sums + row + VECTOR_BYTES, b1)
    store(sums + 2 * row, c0)
    store(sums + 2 * row + VECTOR_BYTES, c1)


@inlined
def add_1(scores: int, values: int, sums: int, dim: int, count: int) -> None:
    """Adds `count` weighted values onto all dimensions of one row."""
    whole = dim - dim % LANES
    for d in range(0, whole, LANES):
        total = load(sums + 4 * d)
        for key in range(count):
            weight = splat(load_f32(scores + 4 * key))
            total = fma(load(values + 4 * (key * dim + d)), weight, total)
        store(sums + 4 * d, total)
    for d in range(whole, dim):
        last = load_f32(sums + 4 * d)
        for key in range(count):
            last = fma_f32(load_f32(values + 4 * (key * dim + d)), load_f32(scores + 4 * key), last)
        store_f32(sums + 4 * d, last)
