import subprocess
import sys

import numpy as np
import pytest

from forebay.block_hash import chain_hash, prompt_hashes, root_hash
from forebay.core.effects import Clone, SwapIn
from forebay.core.events import BlockFilled
from forebay.errors import DeviceFault, InvariantError
from forebay.exec.null import BlockContents, NullExecutor, keyed_fractions, null_tokens
from forebay.units import SeqId, keyed_fraction
from tests.unit.exec.script import Script, request


def null(**sizes):
    sizes = {"block_size": 4, "max_num_seqs": 8, "num_blocks": 64, "vocab_size": 1000} | sizes
    contents = BlockContents(
        block_size=sizes["block_size"], num_blocks=sizes["num_blocks"], num_host_blocks=64
    )
    return NullExecutor(contents=contents, **sizes)


def undisturbed(*requests, count=20):
    script = Script(null())
    seqs = [script.add(one) for one in requests]
    script.prefill(*seqs)
    script.decode(count)
    return script.outputs


def test_torch_stays_away():
    code = "import forebay.exec.null, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_fractions_are_those_of_units():
    keys = np.array([[3, 1, 2], [0, 0, 0], [2**63, 7, 2**64 - 1]], np.uint64)
    expected = [keyed_fraction(77, *map(int, row)) for row in keys]
    assert keyed_fractions(77, keys).tolist() == expected


def test_tokens_depend_on_request_branch_and_position_alone():
    alone = undisturbed(request(3))
    together = undisturbed(request(2, prompt=range(9)), request(3), request(4))
    assert together[24] == alone[24]
    assert len(set(map(tuple, together.values()))) == 3


def test_no_tokens_of_no_sequences():
    assert null_tokens([], 10) == []


@pytest.mark.parametrize("cuts", [(5,), (1, 1, 1, 1, 1), (2, 3), (4, 1)])
def test_chunks_sample_at_the_end_of_the_prompt_only(cuts):
    script = Script(null())
    seq = script.add(request())
    for cut in cuts:
        before = script.outputs[seq][:]
        assert not before
        script.step({seq: cut})
    script.decode(3)
    assert script.outputs[seq] == undisturbed(request())[seq][:4]


def test_idle_rows_wait():
    script = Script(null())
    one, two = script.add(request(0)), script.add(request(1))
    script.prefill(one, two)
    assert script.step(idle=[one]).seq_ids == [two]
    assert script.step(idle=[one, two]).seq_ids == []
    script.decode(2)
    assert script.outputs[one] == undisturbed(request(0))[one][:3]


def test_preempted_by_recompute_then_resumed_in_chunks():
    script = Script(null())
    one, two = script.add(request(0)), script.add(request(1))
    script.prefill(one, two)
    script.decode(4)
    script.preempt(one)
    script.decode(2)
    script.resume(one)
    script.step({one: 3})
    script.step({one: 4})
    script.step({one: 3})
    script.decode(5)
    expected = undisturbed(request(0), request(1))
    assert script.outputs[one] == expected[one][:11]
    assert script.outputs[two] == expected[two][:15]


def test_swapped_out_and_in_while_others_take_the_blocks():
    script = Script(null())
    one, two = script.add(request(0)), script.add(request(1))
    script.prefill(one, two)
    script.decode(4)
    script.swap_out(one)
    three = script.add(request(2, prompt=range(30)))
    script.prefill(three)
    script.swap_in(one)
    script.decode(5)
    assert script.outputs[one] == undisturbed(request(0))[one][:10]


def test_swap_in_from_the_wrong_slot_is_found():
    script = Script(null())
    one, two = script.add(request(0)), script.add(request(1))
    script.prefill(one, two)
    script.swap_out(one)
    script.step()
    script.swap_in(one)
    first, second = script.next.copies
    script.next.copies[:] = [SwapIn(second.slot, first.block), SwapIn(first.slot, second.block)]
    with pytest.raises(InvariantError, match="sequence 0 reads token 0 of 6 from block"):
        script.step()


def test_a_block_reused_too_early_is_found():
    script = Script(null())
    one = script.add(request(0))
    script.prefill(one)
    script._drop(script.rows[one].table)
    two = script.add(request(1, prompt=range(9)))
    script.step({two: 3}, idle=[one])
    with pytest.raises(InvariantError, match="which holds something else"):
        script.step(idle=[two])


def test_forks_share_and_part():
    script = Script(null())
    seq = script.add(request(0, n=3))
    script.step({seq: 5}, forks={seq: [1, 2]})
    assert script.results[-1].seq_ids == [0, 1, 2]
    script.decode(6)
    assert any(isinstance(copy, Clone) for copy in script.next.copies) is False
    script.swap_out(0, 1, 2)
    script.step()
    script.swap_in(0, 1, 2)
    script.decode(3)
    script.end(0, 1, 2)
    script.step()
    outputs = [tuple(script.outputs[branch]) for branch in range(3)]
    assert len(set(outputs)) == 3
    assert {len(output) for output in outputs} == {10}
    assert len(script.executor.ledger.buffers) == 0


def test_branches_are_recomputed_one_by_one():
    script = Script(null())
    script.add(request(0, n=2))
    script.step({0: 5}, forks={0: [1]})
    script.decode(3)
    script.preempt(0)
    script.preempt(1)
    script.step()
    script.resume(0)
    script.resume(1)
    script.step({0: 9}, idle=[1])
    script.step({1: 9})
    script.decode(2)
    assert [len(script.outputs[seq]) for seq in (0, 1)] == [8, 7]
    assert script.outputs[0][:7] != script.outputs[1]


def test_a_stopped_sequence_yields_nothing_however_late_the_scheduler_learns():
    tokens = undisturbed(request(0))[0]
    script = Script(null())
    one = script.add(request(0, stop=[tokens[3]]))
    two = script.add(request(1))
    script.prefill(one, two)
    script.decode(2)
    assert script.step().stops == [one]
    for _ in range(2):
        assert script.step().seq_ids == [two]
    script.preempt(one)
    assert script.step().seq_ids == [two]
    script.resume(one)
    assert script.step({one: 9}, idle=[two]).seq_ids == []
    script.swap_out(one)
    assert script.step().seq_ids == [two]
    script.swap_in(one)
    assert script.step().seq_ids == [two]
    script.end(one)
    script.step()
    assert script.outputs[one] == tokens[:4]
    assert script.outputs[two] == undisturbed(request(1))[two][:10]


@pytest.mark.parametrize(
    ("sampling", "stop_at"),
    [({}, 2), ({"ignore_eos": True}, None), ({"min_tokens": 5}, None)],
)
def test_stop_tokens(sampling, stop_at):
    tokens = undisturbed(request(0))[0]
    script = Script(null())
    script.add(request(0, stop=[tokens[2]], **sampling))
    script.prefill(0)
    script.decode(4)
    if stop_at is None:
        assert len(script.outputs[0]) == 5
    else:
        assert script.outputs[0] == tokens[: stop_at + 1]
    assert (tokens[2] in script.outputs[0]) == ("min_tokens" not in sampling)


def test_own_stop_tokens_stop_under_ignore_eos_too():
    tokens = undisturbed(request(0))[0]
    script = Script(null())
    script.add(request(0, ignore_eos=True, stop_token_ids=[tokens[0]]))
    assert script.prefill(0).stops == [0]


@pytest.mark.parametrize("num_prompt", [1, 3, 4, 5, 8])
def test_filled_blocks_are_reported_with_their_chained_hash(num_prompt):
    root = root_hash("model")
    prompt = list(range(100, 100 + num_prompt))
    own = prompt_hashes(root, prompt, 4)
    script = Script(null())
    script.add(request(0, prompt, last_hash=own[-1] if own else root, n=2))
    script.step({0: num_prompt}, forks={0: [1]})
    script.decode(10)
    for branch in (0, 1):
        tokens = prompt + script.outputs[branch]
        filled = [one for result in script.results for one in result.filled if one.seq_id == branch]
        expected = [
            BlockFilled(SeqId(branch), index, digest)
            for index, digest in enumerate(prompt_hashes(root, tokens, 4))
            if index >= len(own)
        ]
        assert filled == expected
    assert expected


def test_a_block_ended_by_a_stop_token_is_not_reported():
    tokens = undisturbed(request(0))[0]
    script = Script(null())
    script.add(request(0, stop=[tokens[2]], last_hash=chain_hash(root_hash("m"), [5, 6, 7, 8])))
    script.prefill(0)
    script.decode(2)
    assert script.results[-1].stops == [0]
    assert not any(result.filled for result in script.results)


def test_no_hashes_without_a_prefix_cache():
    script = Script(null())
    script.add(request(0))
    script.prefill(0)
    script.decode(10)
    assert not any(result.filled for result in script.results)


def test_logprobs_only_for_those_who_ask():
    script = Script(null())
    script.add(request(0, logprobs=2))
    script.add(request(1))
    script.add(request(2, logprobs=0))
    result = script.prefill(0, 8, 16)
    assert {seq: len(told.top) for seq, told in result.logprobs.items()} == {0: 1, 16: 0}


def test_a_closed_executor_faults():
    executor = null()
    script = Script(executor)
    executor.close()
    executor.close()
    with pytest.raises(DeviceFault):
        script.step()
