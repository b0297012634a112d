"""The attention kernel: every query's sums run in one order, whatever else is computed with it.

A score is one chain of fused multiply-adds over the head dimension, for 16 keys at once. Keys are
taken in tiles of 64 absolute positions; a tile's weighted values are added key by key onto the
running sum (online softmax: Milakov and Gimelshein 2018; FlashAttention, Dao et al. 2022). So the
chunk, the batch, the block ids, the block size and the number of threads decide only what is
computed together: not one bit of a result.

The kernel is called once per thread with the address of the arguments (`ARGUMENTS`, int64 each);
threads take units of work, a few tokens of one key-value head, from a shared counter.
Keys lie dimension-major within a block, `(head_dim, block_size)`, and values key-major.
"""

from forebay.exec import attention_call, attention_tiles, simd
from forebay.exec.attention_call import Arguments, Run, Scratch, lay_out, read_arguments
from forebay.exec.attention_tiles import (
    KEY_TILE,
    add_1,
    add_3,
    scale_sums,
    score_1,
    score_3,
    score_6,
)
from forebay.exec.simd import (
    LANES,
    VECTOR_BYTES,
    CompiledKernel,
    add,
    div,
    exp2,
    fetch_add,
    inlined,
    keep_first,
    load,
    load_f32,
    load_i32,
    load_i64,
    max_lanes,
    maximum,
    mul,
    prefetch,
    splat,
    store,
    store_f32,
    store_i32,
    store_i64,
    sub,
    sum_lanes,
)

MAX_TILE_ROWS = 24
"""Query heads that share one walk over the keys: their state fits the first-level cache."""
LOWEST = -1e30
"""Stands for minus infinity where a difference of two must not be NaN."""


@inlined
def _begin(call: Arguments, run: Run, scratch: Scratch) -> int:
    """Copies the scaled queries, clears the sums; the answer is the run's greatest length."""
    dim = call.head_dim
    whole = dim - dim % LANES
    scale = load_f32(call.scale)
    longest = 0
    for row in range(run.num_rows):
        token = run.first_token + row // call.group
        head = run.head * call.group + row % call.group
        length = load_i32(call.positions + 4 * token) + 1
        store_i32(scratch.lengths + 4 * row, length)
        longest = max(longest, length)
        source = call.query + token * call.query_stride + 4 * head * dim
        queries = scratch.queries + 4 * row * dim
        sums = scratch.sums + 4 * row * dim
        for d in range(0, whole, LANES):
            store(queries + 4 * d, mul(load(source + 4 * d), splat(scale)))
            store(sums + 4 * d, splat(0.0))
        for d in range(whole, dim):
            store_f32(queries + 4 * d, load_f32(source + 4 * d) * scale)
            store_f32(sums + 4 * d, 0.0)
        store(scratch.highest + VECTOR_BYTES * row, splat(LOWEST))
        store(scratch.weights + VECTOR_BYTES * row, splat(0.0))
    return longest


@inlined
def _block(call: Arguments, run: Run, index: int) -> int:
    """Byte offset of the sequence's block number `index`, at the run's key-value head."""
    block: int = load_i32(run.table + 4 * index)
    return block * call.block_stride + 4 * run.head * call.block_size * call.head_dim


@inlined
def _gather_keys(call: Arguments, run: Run, start: int, count: int, target: int) -> None:
    """Copies keys that no 16-lane load can reach: blocks that are no multiple of 16 long."""
    index = start // call.block_size
    within = start - index * call.block_size
    for lane in range(count):
        source = call.keys + _block(call, run, index) + 4 * within
        for d in range(call.head_dim):
            store_f32(
                target + VECTOR_BYTES * d + 4 * lane,
                load_f32(source + 4 * d * call.block_size),
            )
        within += 1
        if within == call.block_size:
            within = 0
            index += 1


@inlined
def _find_keys(call: Arguments, run: Run, scratch: Scratch, start: int, longest: int) -> int:
    """Notes where each 16 keys of a tile lie, in `scratch.places`; the answer is their step.

    Also asks for the tile's values, and for the next tile's keys: blocks lie far apart, where the
    CPU's own prefetching finds no stream to follow.
    """
    count = min(KEY_TILE, longest - start)
    if call.block_size % LANES != 0:
        for offset in range(0, count, LANES):
            keys = scratch.keys + 4 * offset * call.head_dim
            _gather_keys(call, run, start + offset, min(LANES, count - offset), keys)
            store_i64(scratch.places + offset // 2, keys)
        return VECTOR_BYTES
    index = start // call.block_size
    within = start - index * call.block_size
    for offset in range(0, min(2 * KEY_TILE, longest - start), LANES):
        block = _block(call, run, index)
        keys = call.keys + block + 4 * within
        if offset < KEY_TILE:
            store_i64(scratch.places + offset // 2, keys)
            values = call.values + block + 4 * within * call.head_dim
            for line in range(call.head_dim):
                prefetch(values + VECTOR_BYTES * line)
        else:
            for d in range(call.head_dim):
                prefetch(keys + 4 * d * call.block_size)
        within += LANES
        if within == call.block_size:
            within = 0
            index += 1
    return 4 * call.block_size


@inlined
def _score_tile(call: Arguments, run: Run, scratch: Scratch, start: int, longest: int) -> None:
    """Scores of every row against the keys from `start`; lanes past the last hold anything."""
    dim = call.head_dim
    step = _find_keys(call, run, scratch, start, longest)
    count = min(KEY_TILE, longest - start)
    for offset in range(0, count, 2 * LANES):
        near = load_i64(scratch.places + offset // 2)
        far = near
        if offset + LANES < count:
            far = load_i64(scratch.places + offset // 2 + 8)
        row = 0
        scores = scratch.scores + 4 * offset
        while row + 6 <= run.num_rows:
            queries = scratch.queries + 4 * row * dim
            score_6(queries, near, step, dim, scores + 4 * row * KEY_TILE)
            score_6(queries, far, step, dim, scores + 4 * row * KEY_TILE + VECTOR_BYTES)
            row += 6
        while row + 3 <= run.num_rows:
            queries = scratch.queries + 4 * row * dim
            score_3(queries, near, far, step, dim, scores + 4 * row * KEY_TILE)
            row += 3
        while row < run.num_rows:
            queries = scratch.queries + 4 * row * dim
            score_1(queries, near, step, dim, scores + 4 * row * KEY_TILE)
            score_1(queries, far, step, dim, scores + 4 * row * KEY_TILE + VECTOR_BYTES)
            row += 1


@inlined
def _weigh(call: Arguments, scratch: Scratch, row: int, count: int) -> None:
    """Turns a row's scores of one tile into weights, and brings its sums to the new maximum."""
    scores = scratch.scores + 4 * row * KEY_TILE
    highest = scratch.highest + VECTOR_BYTES * row
    before = load(highest)
    lanes = before
    for offset in range(0, count, LANES):
        lanes = maximum(keep_first(load(scores + 4 * offset), count - offset, LOWEST), lanes)
    top = max_lanes(lanes)
    now = splat(top)
    factor = exp2(sub(before, now))
    total = mul(load(scratch.weights + VECTOR_BYTES * row), factor)
    for offset in range(0, count, LANES):
        weight = exp2(sub(load(scores + 4 * offset), now))
        weight = keep_first(weight, count - offset, 0.0)
        total = add(total, weight)
        store(scores + 4 * offset, weight)
    store(scratch.weights + VECTOR_BYTES * row, total)
    if load_f32(highest) < top:
        scale_sums(scratch.sums + 4 * row * call.head_dim, call.head_dim, factor)
        store(highest, now)


@inlined
def _add_rows(
    call: Arguments, run: Run, scratch: Scratch, values: int, start: int, count: int, offset: int
) -> None:
    """Adds the values of positions `start + offset` and on, at most `count`, onto every row."""
    dim = call.head_dim
    row = 0
    reached = start + offset
    while row < run.num_rows:
        scores = scratch.scores + 4 * (row * KEY_TILE + offset)
        sums = scratch.sums + 4 * row * dim
        mine = min(count, load_i32(scratch.lengths + 4 * row) - reached)
        if dim % (2 * LANES) == 0 and row + 3 <= run.num_rows:
            second = min(count, load_i32(scratch.lengths + 4 * row + 4) - reached)
            third = min(count, load_i32(scratch.lengths + 4 * row + 8) - reached)
            if second == mine and third == mine:
                for d in range(0, dim, 2 * LANES):
                    add_3(scores, values + 4 * d, sums + 4 * d, dim, mine)
                row += 3
                continue
        add_1(scores, values, sums, dim, mine)
        row += 1


@inlined
def _add_values(call: Arguments, run: Run, scratch: Scratch, start: int, count: int) -> None:
    """Adds a tile's weighted values onto every row, block by block."""
    index = start // call.block_size
    within = start - index * call.block_size
    offset = 0
    while offset < count:
        values = call.values + _block(call, run, index) + 4 * within * call.head_dim
        length = min(call.block_size - within, count - offset)
        _add_rows(call, run, scratch, values, start, length, offset)
        offset += length
        within = 0
        index += 1


@inlined
def _attend_run(call: Arguments, run: Run, scratch: Scratch) -> None:
    longest = _begin(call, run, scratch)
    for start in range(0, longest, KEY_TILE):
        count = min(KEY_TILE, longest - start)
        _score_tile(call, run, scratch, start, longest)
        for row in range(run.num_rows):
            mine = min(count, load_i32(scratch.lengths + 4 * row) - start)
            if mine > 0:
                _weigh(call, scratch, row, mine)
        _add_values(call, run, scratch, start, count)


@inlined
def _finish(call: Arguments, run: Run, scratch: Scratch) -> None:
    dim = call.head_dim
    whole = dim - dim % LANES
    num_heads = call.num_kv_heads * call.group
    for row in range(run.num_rows):
        token = run.first_token + row // call.group
        head = run.head * call.group + row % call.group
        target = call.out + 4 * dim * (token * num_heads + head)
        sums = scratch.sums + 4 * row * dim
        factor = splat(sum_lanes(load(scratch.weights + VECTOR_BYTES * row)))
        for d in range(0, whole, LANES):
            store(target + 4 * d, div(load(sums + 4 * d), factor))
        for d in range(whole, dim):
            store_f32(target + 4 * d, load_f32(sums + 4 * d) / max_lanes(factor))


@inlined
def _attend_unit(call: Arguments, scratch: Scratch, unit: int) -> None:
    first = unit // call.num_kv_heads * call.tile_tokens
    end = min(first + call.tile_tokens, call.num_tokens)
    while first < end:
        sequence = load_i32(call.token_rows + 4 * first)
        stop = first + 1
        while stop < end and load_i32(call.token_rows + 4 * stop) == sequence:
            stop += 1
        table = call.tables + sequence * call.table_stride
        run = Run(first, (stop - first) * call.group, unit % call.num_kv_heads, table)
        _attend_run(call, run, scratch)
        _finish(call, run, scratch)
        first = stop


@inlined
def _attend_units(arguments: int) -> None:
    """One thread's share of a call; `arguments` is the address of `Arguments` as int64."""
    call = read_arguments(arguments)
    base = call.scratch + fetch_add(call.counters, 1) * call.scratch_stride
    scratch = lay_out(base, call.tile_tokens * call.group, call.head_dim)
    num_tiles = (call.num_tokens + call.tile_tokens - 1) // call.tile_tokens
    num_units = num_tiles * call.num_kv_heads
    # From the end: the last tokens of a prompt have most keys, and large units are best done first.
    unit = num_units - 1 - fetch_add(call.counters + 8, 1)
    while unit >= 0:
        _attend_unit(call, scratch, unit)
        unit = num_units - 1 - fetch_add(call.counters + 8, 1)


def compile_attention() -> CompiledKernel:
    """Compiles the kernel, in a few seconds, or loads it from numba's cache."""
    version = simd.source_version(__file__, attention_call.__file__, attention_tiles.__file__)

    def attend(arguments: int) -> None:
        # numba renews its cache when this file changes, or a constant taken from around the
        # function: so the version stands for the other files.
        if version >= 0:
            _attend_units(arguments)

    return simd.compile_kernel(attend)
