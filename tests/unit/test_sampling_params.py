import copy
import dataclasses
import pickle

import numpy as np
import pytest

from forebay.errors import BadRequest
from forebay.sampling_params import SamplingParams

GOOD = {
    "n": [1, 8],
    "temperature": [0, 0.0, 1, 2.5, np.float32(0.5)],
    "top_p": [1, 1.0, 1e-9],
    "top_k": [-1, 0, 1, 100_000, np.int64(5)],
    "min_p": [0, 1, 0.3],
    "presence_penalty": [-2, 2, 0.5],
    "frequency_penalty": [-2.0, 2.0],
    "repetition_penalty": [0.01, 1, 5.0],
    "seed": [None, 0, -5, 2**63 - 1, 2**64 - 1],
    "max_tokens": [None, 1, 100_000],
    "min_tokens": [0, 16],
    "stop": [None, "x", ["x", "yy"], ("x",), []],
    "stop_token_ids": [None, [], [0, 5], (7,)],
    "ignore_eos": [True, False],
    "logprobs": [None, 0, 20],
    "include_stop_str_in_output": [True],
    "skip_special_tokens": [False],
}

BAD = {
    "n": [0, 9, 1.0, True, "2", None],
    "temperature": [-0.1, float("nan"), float("inf"), "hot", None, True, 1j, 10**400],
    "top_p": [0, -1, 1.01, float("nan"), None],
    "top_k": [-2, 0.5, None, 2**31, False],
    "min_p": [-0.1, 1.1, float("nan")],
    "presence_penalty": [-2.1, 2.1, float("inf"), "1"],
    "frequency_penalty": [-2.1, 2.1, float("-inf")],
    "repetition_penalty": [0, -1, float("nan"), float("inf")],
    "seed": [1.5, "1", True, 2**64, -(2**63) - 1],
    "max_tokens": [0, -1, 1.0, True],
    "min_tokens": [-1, 17, None, 2.0],
    "stop": ["", [""], ["a", ""], [1], 5, b"x", [b"x"]],
    "stop_token_ids": ["12", 5, [-1], [1.0], [True], [None], [2**31]],
    "ignore_eos": [1, None, "yes"],
    "logprobs": [-1, 21, True, 1.0, "all"],
    "include_stop_str_in_output": [0],
    "skip_special_tokens": ["no"],
}

FIELDS = [field.name for field in dataclasses.fields(SamplingParams)]


def cases(table):
    return [(name, value) for name, values in table.items() for value in values]


def test_every_field_is_tried():
    assert set(GOOD) == set(BAD) == set(FIELDS)


@pytest.mark.parametrize(("name", "value"), cases(GOOD))
def test_good_values(name, value):
    params = SamplingParams(**{name: value})
    kept = getattr(params, name)
    if name in ("stop", "stop_token_ids"):
        assert isinstance(kept, tuple)
    else:
        assert kept == value


@pytest.mark.parametrize(("name", "value"), cases(BAD))
def test_bad_values_are_named_with_what_is_allowed(name, value):
    with pytest.raises(BadRequest) as told:
        SamplingParams(**{name: value})
    message = str(told.value)
    assert message.startswith(f"{name} is ")
    assert "must be" in message
    assert len(message) < 600


def test_defaults_are_those_of_vllm():
    params = SamplingParams()
    assert (params.n, params.temperature, params.top_p, params.top_k, params.min_p) == (
        1,
        1,
        1,
        0,
        0,
    )
    assert (params.max_tokens, params.min_tokens, params.seed) == (16, 0, None)
    assert (params.logprobs, params.stop_strings, params.stop_token_ids) == (None, (), ())
    assert params.skip_special_tokens
    assert not params.has_penalties
    assert not params.is_greedy


def test_positional_use():
    assert SamplingParams(2, 0.5) == SamplingParams(n=2, temperature=0.5)


def test_seed_of_minus_one_is_none():
    assert SamplingParams(seed=-1).seed is None


def test_numbers_become_plain():
    params = SamplingParams(
        temperature=np.float32(0.5), top_k=np.int64(3), stop_token_ids=[np.int32(4)]
    )
    assert type(params.temperature) is float
    assert type(params.top_k) is int
    assert type(params.stop_token_ids[0]) is int


def test_min_tokens_up_to_max_tokens():
    assert SamplingParams(min_tokens=17, max_tokens=None).min_tokens == 17
    with pytest.raises(BadRequest, match=r"min_tokens is 4; it must be from 0 to max_tokens \(3\)"):
        SamplingParams(min_tokens=4, max_tokens=3)


@pytest.mark.parametrize(("temperature", "greedy"), [(0, True), (9e-6, True), (1e-5, False)])
def test_greedy_below_vllms_epsilon(temperature, greedy):
    assert SamplingParams(temperature=temperature).is_greedy is greedy


@pytest.mark.parametrize("name", ["presence_penalty", "frequency_penalty", "repetition_penalty"])
def test_has_penalties(name):
    assert SamplingParams(**{name: 0.5}).has_penalties


def test_frozen_hashable_copied_and_pickled():
    params = SamplingParams(stop=["a"], stop_token_ids=[1], seed=3)
    with pytest.raises(dataclasses.FrozenInstanceError):
        params.n = 2
    assert hash(params) == hash(SamplingParams(stop=("a",), stop_token_ids=(1,), seed=3))
    assert copy.deepcopy(params) == params
    assert pickle.loads(pickle.dumps(params)) == params
    assert dataclasses.replace(params, n=2).stop_strings == ("a",)


def test_unknown_fields_are_refused():
    with pytest.raises(TypeError, match="best_of"):
        SamplingParams(best_of=3)
