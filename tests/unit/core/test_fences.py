from forebay.core.blocks import BlockPool, Hold
from forebay.core.fences import Fences
from forebay.core.prefix import PrefixIndex


def test_blocks_come_back_with_the_last_step_that_may_write_them() -> None:
    pool = BlockPool(4, PrefixIndex())
    fences = Fences(pool)
    for last_step in (3, 1):
        hold = Hold()
        pool.take(hold, 2)
        fences.add(pool.hand_over(hold), last_step)
    assert (pool.num_free, fences.num_returning) == (0, 4)
    for done, free in [(0, 0), (1, 2), (2, 2), (3, 4)]:
        fences.drop_until(done)
        assert pool.num_free == free
        assert fences.num_returning == 4 - free
    assert fences.holds == []


def test_a_block_that_somebody_else_holds_is_not_returning() -> None:
    pool = BlockPool(2, PrefixIndex())
    fences = Fences(pool)
    hold, sharer, other = Hold(), Hold(), Hold()
    pool.take(hold, 2)
    pool.share(sharer, hold.blocks[:1])
    pool.share(other, hold.blocks[1:])
    fences.add(pool.hand_over(hold), 1)
    fences.add(pool.hand_over(other), 2)
    assert fences.num_returning == 1
    pool.drop(sharer)
    assert fences.num_returning == 2


def test_an_empty_table_needs_no_fence() -> None:
    fences = Fences(BlockPool(1, PrefixIndex()))
    fences.add(Hold(), 1)
    assert fences.holds == []
