"""Promises of the scheduler that every executor checks, broken one at a time."""

import pytest

from forebay.core.effects import Chunk, Clone, Fork, LeaveKind
from forebay.errors import InvariantError
from forebay.exec.null import NullExecutor
from forebay.units import BlockId, SeqId
from tests.unit.exec.script import Script, request


def null(**sizes):
    sizes = {"block_size": 4, "max_num_seqs": 8, "num_blocks": 64, "vocab_size": 1000} | sizes
    return NullExecutor(**sizes)


def broken(change, match):
    script = Script(null())
    script.add(request(0))
    script.add(request(1))
    script.prefill(0, 8)
    change(script)
    with pytest.raises(InvariantError, match=match):
        script.step()


def test_wrong_number_of_known_tokens():
    def change(script):
        script.preempt(0)
        script.rows[0].known -= 1
        script.resume(0)

    broken(change, "6 tokens are here of Join")


def test_wrong_counts():
    def change(script):
        script.next.num_tokens = 1

    broken(change, "promises 3 tokens of 2 rows, but its parts come to 2 of 2")


def test_joined_twice():
    broken(lambda script: script.join(0), "joins the batch twice")


def test_left_twice():
    def change(script):
        script.leave(0)
        script.next.left *= 2

    broken(change, "sequence 0 is not in the batch")


def test_ended_while_in_the_batch():
    def change(script):
        script.next.ended.append(1)

    broken(change, "request 1 ended with 8 in the batch")


def test_never_added():
    def change(script):
        script.rows[16] = script.rows[8]
        script.join(16)

    broken(change, "sequence 16 has no tokens")


def test_unfinished_prompt_cannot_decode():
    script = Script(null())
    script.add(request(0))
    script.step({0: 2})
    with pytest.raises(InvariantError, match="has 2 of 5 tokens computed and cannot decode"):
        script.step()


@pytest.mark.parametrize(
    ("start", "count", "samples"), [(1, 4, False), (0, 6, False), (0, 4, True)]
)
def test_chunk_that_does_not_go_on(start, count, samples):
    script = Script(null())
    script.add(request(0))
    script.next.chunks.append(Chunk(SeqId(0), start, count, samples))
    script.next.num_tokens, script.next.num_rows = count, 1
    with pytest.raises(InvariantError, match="does not go on from 0 of 5"):
        script.executor.execute(script.next)


def test_table_too_short():
    script = Script(null())
    script.add(request(0, prompt=range(4)))
    script.prefill(0)
    script.rows[0].table.append(63)
    with pytest.raises(InvariantError, match="has 1 blocks and needs 2"):
        script.step()


def test_batch_overfull():
    script = Script(null(max_num_seqs=1))
    script.add(request(0))
    script.add(request(1))
    with pytest.raises(InvariantError, match="joins a full batch of 1"):
        script.prefill(0, 8)


def test_block_outside_the_pool():
    script = Script(null(num_blocks=2), num_blocks=64)
    script.add(request(0, prompt=range(9)))
    with pytest.raises(InvariantError, match="of a pool of 2"):
        script.prefill(0)


def test_clone_of_what_is_not_there():
    def change(script):
        script.next.copies.append(Clone(SeqId(0), 0, BlockId(60), BlockId(61)))

    broken(change, "entry 0 of sequence 0 is to change from block 60")


def test_clone_for_a_victim_that_has_left_is_made_for_nothing():
    script = Script(null())
    script.add(request(0))
    script.add(request(1))
    script.prefill(0, 8)
    script.preempt(0)
    script.next.copies.append(Clone(SeqId(0), 0, BlockId(0), BlockId(61)))
    assert script.step().seq_ids == [8]


def test_fork_of_one_that_does_not_sample():
    script = Script(null())
    script.add(request(0, n=2))
    with pytest.raises(InvariantError, match="is forked but does not sample"):
        script.step({0: 2}, forks={0: [1]})


def test_fork_after_output():
    script = Script(null())
    script.add(request(0, n=2))
    script.prefill(0)
    script.next.forks.append(Fork(SeqId(0), (SeqId(1),)))
    with pytest.raises(InvariantError, match="has output and cannot be forked"):
        script.step()


def test_steps_in_order():
    script = Script(null())
    script.step()
    script.next.seq = 1
    with pytest.raises(InvariantError, match="step 1 comes after step 1"):
        script.step()


def test_ended_before_it_was_ever_added():
    script = Script(null())
    script.next.ended.append(7)
    assert script.step().seq_ids == []


def test_leave_kinds_keep_the_buffer():
    for kind in LeaveKind:
        script = Script(null())
        script.add(request(0))
        script.prefill(0)
        script.leave(0, kind)
        script.step()
        assert len(script.executor.ledger.buffers) == 1
