"""The runner over a tiny random model: whatever happens to the batch, tokens stay the same."""

import random

import pytest
import torch
import torch.nn.functional as F

from forebay.core.effects import Clone, SwapIn, SwapOut
from forebay.errors import DeviceFault
from forebay.exec.decoder import load_decoder
from forebay.exec.kv_tensors import KvLayout, KvTensors
from forebay.exec.model_source import open_model
from forebay.exec.runner import Runner, perform_copies
from forebay.units import BlockId, HostSlot, SeqId
from tests.support.tiny_models import random_weights, save_gguf, small_config
from tests.unit.exec.script import Script, request

CONFIG = small_config(num_layers=2)


@pytest.fixture(scope="module", autouse=True)
def _one_thread():
    """A tiny model's products are not worth waking other threads for."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def row_by_row(x, weight, bias):
    """A product that treats each row alone."""
    return torch.cat([F.linear(row, weight, bias) for row in x.split(1)])


@pytest.fixture(scope="module")
def decoder(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    save_gguf(path, CONFIG, random_weights(CONFIG))
    return load_decoder(open_model(path), max_model_len=256, linear=row_by_row)


def pools(num_blocks=64, num_host_blocks=64):
    layout = KvLayout(
        num_layers=CONFIG.num_layers,
        num_kv_heads=CONFIG.num_kv_heads,
        head_dim=CONFIG.head_dim,
        block_size=16,
    )
    return KvTensors(layout, num_blocks=num_blocks, num_host_blocks=num_host_blocks)


@pytest.fixture
def script(decoder):
    return Script(Runner(model=decoder, pools=pools(), max_num_seqs=16), block_size=16)


def prompt(number, length=21):
    return [(7 * number + 3 * at) % CONFIG.vocab_size for at in range(length)]


def asked(number, **sampling):
    sampling = {"temperature": 1.0, "logprobs": 3, "max_tokens": 100} | sampling
    return request(number, prompt(number), seed=100 + number, **sampling)


@pytest.fixture(scope="module")
def alone(decoder):
    """Tokens and log-probabilities of requests that run by themselves, undisturbed."""
    known = {}

    def run(number, **sampling):
        key = (number, *sorted(sampling.items()))
        if key not in known:
            script = Script(Runner(model=decoder, pools=pools(), max_num_seqs=1), block_size=16)
            seq = script.add(asked(number, **sampling))
            script.prefill(seq)
            script.decode(24)
            known[key] = script.outputs[seq], told(script, seq)
        return known[key]

    return run


def told(script, seq):
    return [result.logprobs[seq] for result in script.results if seq in result.logprobs]


def assert_undisturbed(script, seq, expected):
    tokens, logprobs = expected
    count = len(script.outputs[seq])
    assert count
    assert script.outputs[seq] == tokens[:count]
    assert told(script, seq) == logprobs[:count]


def test_greedy_tokens_are_those_of_the_whole_sequence(decoder, script):
    seq = script.add(request(0, prompt(0)))
    script.prefill(seq)
    script.decode(8)
    tokens = torch.tensor(prompt(0) + script.outputs[seq])

    def attend(layer, q, k, v):
        k, v = (one.repeat_interleave(2, dim=1).transpose(0, 1) for one in (k, v))
        mixed = F.scaled_dot_product_attention(q.transpose(0, 1), k, v, is_causal=True)
        return mixed.transpose(0, 1).contiguous()

    logits = decoder.logits(decoder.forward(tokens, torch.arange(len(tokens)), attend))
    assert logits.argmax(dim=1)[len(prompt(0)) - 1 : -1].tolist() == script.outputs[seq]


@pytest.mark.parametrize("cuts", [(21,), (1, 20), (16, 5), (7, 7, 7), (20, 1)])
def test_chunks_beside_decoding_rows(script, alone, cuts):
    one = script.add(asked(1))
    script.prefill(one)
    two = script.add(asked(2))
    for cut in cuts:
        script.step({two: cut})
    script.decode(4)
    assert_undisturbed(script, one, alone(1))
    assert_undisturbed(script, two, alone(2))
    assert len(script.outputs[two]) == 5


def test_preempted_by_recompute(script, alone):
    seqs = [script.add(asked(number, frequency_penalty=1.0)) for number in range(3)]
    script.prefill(*seqs)
    script.decode(5)
    script.preempt(seqs[1])
    script.decode(3)
    script.resume(seqs[1])
    script.step({seqs[1]: 10}, idle=[seqs[0]])
    script.step({seqs[1]: 17})
    script.decode(4)
    for number, seq in enumerate(seqs):
        assert_undisturbed(script, seq, alone(number, frequency_penalty=1.0))
    assert len(script.outputs[seqs[1]]) == 11


def test_swapped_out_and_in(script, alone):
    one, two = script.add(asked(1)), script.add(asked(2))
    script.prefill(one, two)
    script.decode(5)
    script.swap_out(one)
    three = script.add(asked(3))
    script.prefill(three)
    script.decode(2)
    script.swap_out(two)
    script.swap_in(one)
    script.decode(3)
    script.end(three)
    script.swap_in(two)
    script.decode(3)
    for number in (1, 2, 3):
        assert_undisturbed(script, 8 * number, alone(number))
    assert len(script.outputs[one]) == 12


def test_branches_share_the_prompt_and_part(script, alone, decoder):
    script.add(asked(4, n=3))
    script.add(asked(1))
    script.step({32: 21, 8: 21}, forks={32: [33, 34]})
    first = script.results[-1]
    assert set(first.seq_ids) == {32, 33, 34, 8}
    tops = [list(first.logprobs[seq].top) for seq in (32, 33, 34)]
    assert tops[0] == tops[1] == tops[2]
    script.decode(3)
    script.swap_out(32, 33, 34)
    script.decode(2)
    script.swap_in(32, 33, 34)
    script.decode(3)
    assert len({tuple(script.outputs[seq]) for seq in (32, 33, 34)}) == 3
    assert_undisturbed(script, 32, alone(4))
    assert_undisturbed(script, 8, alone(1))
    quiet = Script(Runner(model=decoder, pools=pools(), max_num_seqs=3), block_size=16)
    quiet.add(asked(4, n=3))
    quiet.step({32: 21}, forks={32: [33, 34]})
    quiet.decode(6)
    for seq in (32, 33, 34):
        assert_undisturbed(script, seq, (quiet.outputs[seq], told(quiet, seq)))


def test_branches_recomputed_one_by_one(script, decoder):
    quiet = Script(Runner(model=decoder, pools=pools(), max_num_seqs=3), block_size=16)
    for one in (script, quiet):
        one.add(asked(4, n=2))
        one.step({32: 21}, forks={32: [33]})
        one.decode(3)
    script.preempt(32)
    script.preempt(33)
    script.step()
    script.resume(32)
    script.resume(33)
    script.step({32: 25}, idle=[33])
    script.step({33: 25}, idle=[32])
    script.decode(4)
    quiet.decode(8)
    for seq in (32, 33):
        assert_undisturbed(script, seq, (quiet.outputs[seq], told(quiet, seq)))


@pytest.mark.parametrize("seed", range(4))
def test_a_random_life_is_the_quiet_life(decoder, alone, seed):
    """Joins, chunks, idling, preemption and swaps at random, with blocks going round."""
    chance = random.Random(seed)
    runner = Runner(model=decoder, pools=pools(num_blocks=24), max_num_seqs=6)
    script = Script(runner, block_size=16, num_blocks=24)
    waiting, parked = list(range(6)), {}
    for _ in range(40):
        running = script.running[:]
        if running and chance.random() < 0.3:
            victim = chance.choice(running)
            how = chance.choice(["preempt", "swap_out"])
            getattr(script, how)(victim)
            parked[victim] = "resume" if how == "preempt" else "swap_in"
        elif parked and chance.random() < 0.5:
            seq = chance.choice(sorted(parked))
            getattr(script, parked.pop(seq))(seq)
        elif waiting and chance.random() < 0.5:
            script.add(asked(waiting.pop()))
        chunks, idle = {}, []
        for seq in script.running:
            missing = script.rows[seq].known - script.rows[seq].computed
            if len(script.outputs[seq]) >= 24 or chance.random() < 0.1:
                idle.append(seq)
            elif missing > 1:
                chunks[seq] = chance.randint(1, missing)
        script.step(chunks, idle=idle)
    assert sum(map(len, script.outputs.values())) > 30
    for seq, output in script.outputs.items():
        if output:
            assert_undisturbed(script, seq, alone(seq // 8))


def test_stopped_rows_are_left_out_of_compute(script, alone):
    tokens, _ = alone(1)
    one = script.add(asked(1, stop_token_ids=[tokens[2]]))
    two = script.add(asked(2))
    script.prefill(one, two)
    stop_at = tokens.index(tokens[2])
    script.decode(stop_at)
    assert script.results[-1].stops == [one]
    script.decode(3)
    assert script.outputs[one] == tokens[: stop_at + 1]
    assert_undisturbed(script, two, alone(2))


def test_steps_without_work(script):
    assert script.step().token_ids == []
    seq = script.add(asked(1))
    result = script.step({seq: 4})
    assert (result.token_ids, result.logprobs) == ([], {})
    assert result.model_ns > 0
    assert script.step(idle=[seq]).seq_ids == []


def test_a_failing_model_is_a_device_fault(decoder):
    class Failing:
        device = decoder.device
        logits = decoder.logits

        def forward(self, token_ids, positions, attend):
            raise RuntimeError("out of memory")

    script = Script(Runner(model=Failing(), pools=pools(), max_num_seqs=2), block_size=16)
    seq = script.add(asked(1))
    with pytest.raises(DeviceFault, match="step 1 failed on cpu: out of memory"):
        script.prefill(seq)


def test_logits_that_are_no_numbers_are_a_device_fault(decoder):
    class Broken:
        device = decoder.device
        forward = decoder.forward

        def logits(self, hidden):
            return decoder.logits(hidden) * float("nan")

    script = Script(Runner(model=Broken(), pools=pools(), max_num_seqs=2), block_size=16)
    seq = script.add(asked(1))
    with pytest.raises(DeviceFault, match="likeliest logit"):
        script.prefill(seq)


def test_closed(script):
    script.executor.close()
    script.executor.close()
    with pytest.raises(DeviceFault, match="closed"):
        script.step()


def test_copies_are_made_in_order():
    tensors = pools(num_blocks=4, num_host_blocks=2)
    for block in range(4):
        tensors.keys(0)[block] = block

    def clone(src, dst):
        return Clone(SeqId(0), 0, BlockId(src), BlockId(dst))

    copies = [
        SwapOut(BlockId(3), HostSlot(1)),
        clone(1, 3),
        clone(3, 2),
        clone(0, 3),
        SwapIn(HostSlot(1), BlockId(0)),
        SwapOut(BlockId(2), HostSlot(1)),
        SwapIn(HostSlot(1), BlockId(3)),
    ]
    perform_copies(copies, tensors)
    assert [float(tensors.keys(0)[block].max()) for block in range(4)] == [3, 1, 1, 1]
    assert [float(tensors.keys(0)[block].min()) for block in range(4)] == [3, 1, 1, 1]


@pytest.mark.parametrize("num_host_blocks", [0, 8])
def test_measuring_costs_leaves_the_pool_alone(decoder, num_host_blocks):
    tensors = pools(num_blocks=8, num_host_blocks=num_host_blocks)
    for layer in range(2):
        tensors.keys(layer).normal_()
        tensors.values(layer).normal_()
    before = [tensors.keys(layer).clone() for layer in range(2)]
    before += [tensors.values(layer).clone() for layer in range(2)]
    runner = Runner(model=decoder, pools=tensors, max_num_seqs=2)
    costs = runner.measure_costs(max_chunk_tokens=64)
    after = [tensors.keys(layer) for layer in range(2)]
    after += [tensors.values(layer) for layer in range(2)]
    assert all(map(torch.equal, before, after))
    assert 1 < costs.prefill_ns_per_token < 1_000_000_000
    assert 1 <= costs.step_overhead_ns < 1_000_000_000
    assert 1 <= costs.swap_ns_per_block < 1_000_000_000
