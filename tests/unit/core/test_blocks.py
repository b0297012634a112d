import pytest

from forebay.core.blocks import BlockPool, Hold
from forebay.core.prefix import PrefixIndex
from forebay.errors import InvariantError


def pool_of(num_blocks: int) -> tuple[BlockPool, PrefixIndex]:
    index = PrefixIndex()
    return BlockPool(num_blocks, index), index


def test_uncached_blocks_are_taken_before_cached_ones_and_the_tail_first() -> None:
    pool, index = pool_of(5)
    older, newer = Hold(), Hold()
    pool.take(older, 2)
    pool.take(newer, 2)
    for block in (*older.blocks, *newer.blocks):
        index.publish(block, bytes([block]))
    pool.drop(older)
    pool.drop(newer)
    assert pool.num_free == 5
    assert pool.num_cached == 4
    assert pool.take(Hold(), 5) == [4, 1, 0, 3, 2]
    assert len(index) == 0


def test_a_hit_revives_a_cached_block() -> None:
    pool, index = pool_of(2)
    first, second = Hold(), Hold()
    (block,) = pool.take(first, 1)
    index.publish(block, b"x")
    pool.drop(first)
    pool.share(second, [block])
    assert not pool.is_free(block)
    assert index.is_published(block)
    assert pool.num_free == 1


def test_a_shared_block_is_free_when_the_last_holder_lets_go() -> None:
    pool, _ = pool_of(1)
    first, second = Hold(), Hold()
    (block,) = pool.take(first, 1)
    pool.share(second, [block])
    pool.drop(first)
    assert pool.num_free == 0
    pool.drop(second)
    assert pool.num_free == 1


def test_replace_gives_a_fresh_block_in_the_same_place() -> None:
    pool, _ = pool_of(3)
    first, second = Hold(), Hold()
    pool.take(first, 2)
    pool.share(second, first.blocks)
    old, new = pool.replace(second, 1)
    assert (old, second.blocks) == (first.blocks[1], [first.blocks[0], new])
    assert [pool.num_holds(block) for block in (0, 1, 2)] == [2, 1, 1]
    with pytest.raises(InvariantError, match="not shared"):
        pool.replace(second, 1)


def test_shrink_lets_go_of_the_tail() -> None:
    pool, _ = pool_of(4)
    hold = Hold()
    taken = pool.take(hold, 3)
    pool.shrink(hold, 1)
    assert hold.blocks == taken[:1]
    assert pool.num_free == 3


def test_hand_over_moves_the_blocks_to_the_heir() -> None:
    pool, _ = pool_of(2)
    hold = Hold()
    taken = list(pool.take(hold, 2))
    heir = pool.hand_over(hold)
    pool.drop(hold)
    assert (hold.blocks, heir.blocks, pool.num_free) == ([], taken, 0)


def test_more_than_is_free_cannot_be_taken() -> None:
    pool, _ = pool_of(2)
    hold = Hold()
    with pytest.raises(InvariantError, match="3 blocks taken but only 2"):
        pool.take(hold, 3)
    assert (hold.blocks, pool.num_free) == ([], 2)


def test_a_pool_has_a_block() -> None:
    with pytest.raises(InvariantError):
        pool_of(0)
