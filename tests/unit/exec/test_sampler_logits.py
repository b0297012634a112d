"""What is done to logits before a token is drawn, and what is told about them."""

import math

import numpy as np
import pytest
import torch

from forebay.exec.sampler import next_token, sample, token_logprobs
from tests.unit.exec.rows import buffer_of, logits_of, params, row_of, work_of

# -- log-probabilities -----------------------------------------------------------------------


def test_logprobs_are_the_log_softmax_of_raw_logits():
    logits = logits_of(4)
    buffers = [
        buffer_of(at, output=[3], logprobs=3, repetition_penalty=2.0, temperature=0.3)
        for at in range(4)
    ]
    drawn = sample(logits, work_of(buffers))
    expected = torch.log_softmax(logits, dim=1)
    for at, buffer in enumerate(buffers):
        told = drawn.logprobs[buffer.seq_id]
        token = drawn.token_ids[at]
        assert told.logprob == pytest.approx(float(expected[at, token]), abs=1e-5)
        values, ids = expected[at].topk(3)
        assert list(told.top) == ids.tolist()
        assert list(told.top.values()) == pytest.approx(values.tolist(), abs=1e-5)
        assert told.rank == int((expected[at] >= expected[at, token]).sum())


def test_ranks_and_ties_agree_with_the_order_of_top():
    row = row_of(2, 7, 7, 0)
    told = [token_logprobs(row, token, 4) for token in range(4)]
    assert [one.rank for one in told] == [3, 1, 2, 4]
    assert list(told[0].top) == [1, 2, 0, 3]


def test_masked_tokens_have_no_probability():
    told = token_logprobs(row_of(0, -math.inf), 0, 2)
    assert told.logprob == 0
    assert told.top[1] == -math.inf


def test_zero_logprobs_tell_the_sampled_token_only():
    buffer = buffer_of(logprobs=0)
    told = sample(logits_of(1), work_of([buffer])).logprobs[buffer.seq_id]
    assert (told.rank, dict(told.top)) == (1, {})


# -- penalties and masks ---------------------------------------------------------------------


def naive_penalties(row, prompt, output, sampling):
    found = row.astype(np.float64)
    for token in set(prompt) | set(output):
        if found[token] > 0:
            found[token] /= sampling.repetition_penalty
        else:
            found[token] *= sampling.repetition_penalty
    for token in set(output):
        found[token] -= sampling.frequency_penalty * output.count(token)
        found[token] -= sampling.presence_penalty
    return found


@pytest.mark.parametrize(
    "fields",
    [
        {"repetition_penalty": 1.7},
        {"repetition_penalty": 0.6},
        {"frequency_penalty": 0.9},
        {"presence_penalty": -1.5},
        {"repetition_penalty": 1.2, "frequency_penalty": -0.4, "presence_penalty": 2.0},
    ],
)
def test_penalties_follow_their_formulas_token_by_token(fields):
    prompt = [3, 4, 4, 11]
    sampling = params(temperature=0.0, **fields)
    buffer = buffer_of(prompt=prompt, **fields)
    output = []
    for at in range(60):
        row = logits_of(1, vocab=24, seed=at)[0].numpy()
        expected = int(naive_penalties(row, prompt, output, sampling).argmax())
        assert next_token(row, buffer) == expected
        output.append(expected)
        buffer.append(expected)
    assert len(set(output)) > 5


@pytest.mark.parametrize("penalty", [1e-300, 1e-40, 1e40, 1e300])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_strongest_penalties_stay_finite(penalty, temperature):
    buffer = buffer_of(
        prompt=[0, 1], output=[2], repetition_penalty=penalty, temperature=temperature
    )
    for row in (row_of(3, -3, 0, 1, -1), row_of(0, 0, 0, 0, 0)):
        assert 0 <= next_token(row, buffer) < 5
    is_reward = penalty < 1
    assert next_token(row_of(3, -3, 0, 1, -1), buffer) == (0 if is_reward else 3)


def test_penalty_counts_are_made_anew_from_the_buffer():
    fields = {"frequency_penalty": 0.8, "repetition_penalty": 1.4}
    steady = buffer_of(prompt=[1, 2], **fields)
    row = logits_of(1, vocab=16)[0].numpy()
    for _ in range(20):
        late = buffer_of(prompt=[1, 2], output=steady.tokens[2:], **fields)
        token = next_token(row, steady)
        assert next_token(row, late) == token
        steady.append(token)


def test_no_stop_token_before_min_tokens():
    row = row_of(9, 8, 7, 6, 5)
    buffer = buffer_of(stop=[0], stop_token_ids=[1, 99], min_tokens=2, max_tokens=9)
    drawn = []
    for _ in range(3):
        drawn.append(next_token(row, buffer))
        buffer.append(drawn[-1])
    assert drawn == [2, 2, 0]
    assert buffer.stopped


def test_min_tokens_holds_off_random_stops_too():
    row = row_of(9, 0, 0)
    buffers = [buffer_of(at, stop=[0], min_tokens=1, temperature=1.0, seed=at) for at in range(30)]
    assert {next_token(row, buffer) for buffer in buffers} == {1, 2}


def test_raw_logprobs_ignore_the_mask():
    buffer = buffer_of(stop=[0], min_tokens=1, logprobs=1)
    drawn = sample(torch.tensor([[5.0, 1.0]]), work_of([buffer]))
    told = drawn.logprobs[buffer.seq_id]
    assert drawn.token_ids == [1]
    assert told.rank == 2
    assert list(told.top) == [0]


def test_what_needs_more_than_the_argmax():
    plain = [{}, {"ignore_eos": True}, {"stop": ["x"]}, {"seed": 1}, {"top_p": 0.5}, {"n": 3}]
    special = [
        {"temperature": 0.1},
        {"logprobs": 0},
        {"min_tokens": 1},
        {"presence_penalty": 0.1},
        {"frequency_penalty": 0.1},
        {"repetition_penalty": 1.1},
    ]
    assert not any(buffer_of(**fields).needs_more_than_argmax for fields in plain)
    assert all(buffer_of(**fields).needs_more_than_argmax for fields in special)
