import pytest

from forebay.core.swap import HostPool, HostRun
from forebay.errors import InvariantError


def test_slots_are_taken_once_and_come_back() -> None:
    pool = HostPool(3)
    taken = pool.take(2)
    assert (sorted(taken), pool.num_free, pool.used) == ([0, 1], 1, frozenset({0, 1}))
    pool.give_back(HostRun({}, tuple(taken)))
    assert (pool.num_free, pool.used) == (3, frozenset())
    assert sorted(pool.take(3)) == [0, 1, 2]


def test_more_than_is_free_cannot_be_taken() -> None:
    pool = HostPool(1)
    with pytest.raises(InvariantError, match="2 host slots taken but only 1"):
        pool.take(2)
    assert pool.num_free == 1


def test_a_pool_without_slots_is_a_pool() -> None:
    assert HostPool(0).num_free == 0
