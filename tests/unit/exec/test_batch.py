import random

import numpy as np
import pytest

from forebay.errors import InvariantError
from forebay.exec.batch import Batch
from forebay.exec.token_buffers import TokenBuffers, TokenCounts
from forebay.units import BlockId, RequestId, SeqId
from tests.unit.exec.script import request


def blocks(*ids):
    return tuple(map(BlockId, ids))


@pytest.fixture
def buffers():
    made = TokenBuffers()
    for number in range(40):
        made.add(request(number, prompt=range(number + 1)))
    return made


@pytest.fixture
def batch():
    return Batch(block_size=4, max_num_seqs=4, num_blocks=1000)


def test_rows_fill_from_the_front_and_close_gaps(batch, buffers):
    for number in range(3):
        row = batch.join(buffers.of(SeqId(8 * number)), 0, blocks(number, 100 + number))
        assert row == number
    batch.leave(SeqId(0))
    assert batch.num_rows == 2
    assert [batch.row(SeqId(seq)) for seq in (8, 16)] == [1, 0]
    assert batch.table(SeqId(16)) == blocks(2, 102)
    assert batch.table(SeqId(8)) == blocks(1, 101)
    assert batch.num_known[:2].tolist() == [3, 2]
    assert batch.last_token[:2].tolist() == [2, 1]
    assert SeqId(0) not in batch
    batch.leave(SeqId(8))
    assert batch.table(SeqId(16)) == blocks(2, 102)
    with pytest.raises(InvariantError, match="sequence 8 is not in the batch"):
        batch.row(SeqId(8))


def test_rows_that_move_keep_what_their_sequence_needs(batch, buffers):
    buffers.add(request(50, logprobs=1))
    batch.join(buffers.of(SeqId(0)), 0, ())
    batch.join(buffers.of(SeqId(8)), 0, ())
    batch.join(buffers.of(SeqId(400)), 0, ())
    assert batch.is_special[:3].tolist() == [False, False, True]
    batch.leave(SeqId(0))
    assert batch.is_special[:2].tolist() == [True, False]


def test_entries_beyond_a_table_are_zero(batch, buffers):
    batch.join(buffers.of(SeqId(0)), 0, blocks(*range(1, 40)))
    batch.join(buffers.of(SeqId(8)), 0, blocks(7))
    assert batch.block_tables.shape[1] >= 39
    assert not batch.block_tables[1, 1:].any()
    batch.leave(SeqId(0))
    assert batch.block_tables[0, 0] == 7
    assert np.count_nonzero(batch.block_tables) == 1


def test_tables_grow_and_are_kept(batch, buffers):
    batch.join(buffers.of(SeqId(0)), 0, blocks(999))
    batch.join(buffers.of(SeqId(8)), 0, ())
    for start in range(0, 200, 5):
        batch.grow(SeqId(0), blocks(*range(start, start + 5)))
        batch.grow(SeqId(8), ())
    assert batch.table(SeqId(0)) == blocks(999, *range(200))
    assert batch.table(SeqId(8)) == ()


def test_slots(batch, buffers):
    batch.join(buffers.of(SeqId(0)), 0, blocks(9, 2))
    batch.join(buffers.of(SeqId(8)), 0, blocks(5, 900))
    rows = np.array([0, 0, 1, 1], np.int32)
    positions = np.array([0, 6, 3, 4], np.int32)
    assert batch.slots(rows, positions).tolist() == [36, 10, 23, 3600]
    assert batch.slots(rows, positions).dtype == np.int64


def test_stopped_rows_are_not_active_wherever_they_move(batch, buffers):
    for number in range(3):
        batch.join(buffers.of(SeqId(8 * number)), 0, blocks(number))
    assert batch.active_rows().tolist() == [0, 1, 2]
    batch.stop(SeqId(16))
    assert batch.active_rows().tolist() == [0, 1]
    batch.leave(SeqId(0))
    assert batch.active_rows().tolist() == [1]
    batch.leave(SeqId(16))
    assert batch.active_rows().tolist() == [0]
    assert batch.buffers_of(batch.active_rows()) == [buffers.of(SeqId(8))]


@pytest.mark.parametrize("bad", [-1, 1000])
def test_blocks_outside_the_pool(batch, buffers, bad):
    with pytest.raises(InvariantError, match="of a pool of 1000"):
        batch.join(buffers.of(SeqId(0)), 0, blocks(bad))


@pytest.mark.parametrize(("index", "src"), [(2, 5), (0, 4), (-1, 6)])
def test_replacing_what_is_not_there(batch, buffers, index, src):
    batch.join(buffers.of(SeqId(0)), 0, blocks(5, 6))
    with pytest.raises(InvariantError, match=f"entry {index} of sequence 0"):
        batch.replace(SeqId(0), index, BlockId(src), BlockId(7))
    batch.replace(SeqId(0), 1, BlockId(6), BlockId(7))
    assert batch.table(SeqId(0)) == blocks(5, 7)


def test_random_changes_agree_with_plain_dictionaries(buffers):
    chance = random.Random(3)
    batch = Batch(block_size=4, max_num_seqs=12, num_blocks=1000)
    tables: dict[int, list[int]] = {}
    stopped: set[int] = set()
    for _ in range(2000):
        number = chance.randrange(40)
        seq = SeqId(8 * number)
        if seq in tables:
            change = chance.choice(["leave", "grow", "grow", "stop"])
            if change == "leave":
                batch.leave(seq)
                del tables[seq]
                stopped.discard(seq)
            elif change == "grow":
                more = blocks(*(chance.randrange(1000) for _ in range(chance.randrange(6))))
                batch.grow(seq, more)
                tables[seq] += more
            else:
                batch.stop(seq)
                stopped.add(seq)
        elif len(tables) < 12:
            batch.join(buffers.of(seq), chance.randrange(number + 1), ())
            tables[seq] = []
        assert batch.num_rows == len(tables)
    assert len(stopped) < len(tables)
    for seq, table in tables.items():
        row = batch.row(SeqId(seq))
        assert batch.table(SeqId(seq)) == tuple(table)
        assert batch.buffers[row] is buffers.of(SeqId(seq))
        assert batch.num_known[row] == seq // 8 + 1
        assert batch.is_active[row] == (seq not in stopped)
        assert not batch.block_tables[row, len(table) :].any()


# -- token buffers ---------------------------------------------------------------------------


def test_buffers_end_with_their_request(buffers):
    assert len(buffers) == 40
    parent = buffers.of(SeqId(16))
    child = buffers.fork(parent, SeqId(19))
    assert child.tokens == parent.tokens
    assert child.tokens is not parent.tokens
    assert child.branch == 3
    assert buffers.drop(RequestId(2)) == [16, 19]
    assert buffers.drop(RequestId(2)) == []
    assert len(buffers) == 39
    with pytest.raises(InvariantError, match="sequence 19 has no tokens"):
        buffers.of(SeqId(19))


def test_what_cannot_be_added_or_forked(buffers):
    with pytest.raises(InvariantError, match="request 3 was added twice"):
        buffers.add(request(3))
    with pytest.raises(InvariantError, match="empty prompt"):
        buffers.add(request(50, prompt=[]))
    with pytest.raises(InvariantError, match="sequence 9 cannot be forked from 16"):
        buffers.fork(buffers.of(SeqId(16)), SeqId(9))
    with pytest.raises(InvariantError, match="sequence 16 cannot be forked from 16"):
        buffers.fork(buffers.of(SeqId(16)), SeqId(16))


def test_hashes_go_block_by_block(buffers):
    buffer = buffers.of(SeqId(24))
    with pytest.raises(InvariantError, match="completed no hashed block"):
        buffer.fill_block(4)


def test_token_counts_catch_up_in_pieces(buffers):
    buffer = buffers.of(SeqId(24))
    counts = TokenCounts(buffer.tokens)
    for piece in ([], [9], [9, 3, 1], [77, 9]):
        for token in piece:
            buffer.append(token)
        counts.catch_up(buffer)
        counts.catch_up(buffer)
    assert dict(zip(counts.ids, counts.counts, strict=True)) == {9: 3, 3: 1, 1: 1, 77: 1}
    assert list(counts.present_ids) == [0, 1, 2, 3, 9, 77]
