import math

import numpy as np
import pytest
import torch

from forebay.errors import DeviceFault
from forebay.exec.sampler import _first_beyond, draw, likeliest_ids, next_token, sample
from forebay.units import keyed_fraction
from tests.unit.exec.rows import VOCAB, buffer_of, logits_of, params, row_of, work_of

# -- greedy ----------------------------------------------------------------------------------


def test_greedy_takes_the_lowest_id_among_equals():
    logits = torch.tensor([[0.0, 3.0, 3.0, 1.0], [2.0, -1.0, 2.0, 2.0], [-0.0, 0.0, -1.0, 0.0]])
    drawn = sample(logits, work_of([buffer_of(number) for number in range(3)]))
    assert drawn.token_ids == [1, 0, 0]
    assert not drawn.logprobs


def test_greedy_rows_are_those_of_torch():
    logits = logits_of(33)
    drawn = sample(logits, work_of([buffer_of(number) for number in range(33)]))
    assert drawn.token_ids == logits.argmax(dim=1).tolist()


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_logits_that_are_no_numbers_are_a_fault(bad):
    logits = logits_of(3)
    logits[1, 7] = bad
    with pytest.raises(DeviceFault, match="sampled row 1"):
        sample(logits, work_of([buffer_of(number) for number in range(3)]))


def test_a_row_of_nothing_is_a_fault():
    with pytest.raises(DeviceFault, match="is -inf"):
        sample(torch.full((1, 5), -math.inf), work_of([buffer_of(temperature=1.0)]))


# -- independence ----------------------------------------------------------------------------

MIXTURE = [
    {},
    {"temperature": 1.0},
    {"temperature": 0.7, "top_p": 0.9},
    {"temperature": 1.3, "top_k": 40},
    {"temperature": 1.0, "min_p": 0.05, "logprobs": 5},
    {"temperature": 0.8, "top_k": 50, "top_p": 0.8, "min_p": 0.01},
    {"frequency_penalty": 1.0, "presence_penalty": 0.5, "repetition_penalty": 1.3},
    {"logprobs": 20},
    {"temperature": 2.0, "repetition_penalty": 1.5, "logprobs": 0},
]


def mixed_buffers(count):
    return [
        buffer_of(number, prompt=[number + 1, 3, 3], output=[5, 6, 5], seed=number, **sampling)
        for number, sampling in zip(range(count), MIXTURE * 10, strict=False)
    ]


# The real vocabulary's size, and one that no vector width divides.
@pytest.mark.parametrize("vocab", [49_152, 1013])
def test_a_row_is_sampled_alike_in_every_batch(vocab):
    buffers = mixed_buffers(64)
    logits = logits_of(64, vocab)
    before = logits.clone()
    alone = [sample(logits[at : at + 1], work_of(buffers[at : at + 1])) for at in range(64)]
    for start, end in [(0, 64), (3, 5), (7, 40), (63, 64)]:
        drawn = sample(logits[start:end], work_of(buffers[start:end]))
        assert drawn.token_ids == [one.token_ids[0] for one in alone[start:end]]
        for one in alone[start:end]:
            for seq, told in one.logprobs.items():
                assert drawn.logprobs[seq] == told
    order = torch.randperm(64, generator=torch.Generator().manual_seed(1))
    shuffled = sample(logits[order], work_of([buffers[at] for at in order]))
    assert shuffled.token_ids == [alone[at].token_ids[0] for at in order]
    assert torch.equal(logits, before)


def test_branches_draw_from_their_parents_logits_with_keys_of_their_own():
    logits = logits_of(1)
    branches = [buffer_of(0, seed=4, branch=branch, temperature=5.0, n=8) for branch in range(8)]
    drawn = sample(logits, work_of(branches, [0] * 8))
    alone = [sample(logits, work_of([branch])).token_ids[0] for branch in branches]
    assert drawn.token_ids == alone
    assert len(set(alone)) > 5


def test_randomness_is_keyed_by_seed_branch_and_position():
    row = logits_of(1)[0].numpy()
    sampling = params(temperature=1.5)
    for seed, branch, output in [(3, 0, ()), (3, 1, ()), (3, 0, (9, 9)), (-7, 0, (1,))]:
        buffer = buffer_of(0, seed=seed, branch=branch, temperature=1.5)
        for token in output:
            buffer.append(token)
        expected = draw(row, sampling, keyed_fraction(seed, branch, len(output)))
        assert next_token(row, buffer) == expected


# -- filters ---------------------------------------------------------------------------------


def naive_distribution(row, sampling):
    """Probabilities by the definitions, as vLLM orders them: temperature, min-p, top-k, top-p."""
    order = sorted(range(len(row)), key=lambda token: (-row[token], token))
    weights = np.exp((row.astype(np.float64) - row.max()) / sampling.temperature)
    kept = [token for token in order if weights[token] >= sampling.min_p * weights.max()]
    if sampling.top_k > 0:
        kept = kept[: sampling.top_k]
    total = sum(weights[token] for token in kept)
    nucleus, mass = [], 0.0
    for token in kept:
        if mass >= sampling.top_p * total and sampling.top_p < 1:
            break
        nucleus.append(token)
        mass += weights[token]
    return nucleus, np.array([weights[token] / mass for token in nucleus])


FILTERS = [
    {},
    {"temperature": 0.5},
    {"temperature": 50.0},
    {"top_k": 1},
    {"top_k": 7},
    {"top_k": VOCAB},
    {"top_k": 10 * VOCAB},
    {"top_p": 0.5},
    {"top_p": 0.999},
    {"top_p": 0.9, "temperature": 20.0},
    {"min_p": 0.1},
    {"min_p": 1e-7},
    {"min_p": 1.0},
    {"min_p": 0.2, "top_k": 5, "top_p": 0.6},
    {"min_p": 0.2, "top_k": 50},
    {"top_k": 100, "top_p": 0.3, "temperature": 0.9},
]


@pytest.mark.parametrize("fields", FILTERS)
def test_draws_invert_the_distribution(fields):
    sampling = params(**fields)
    for seed in range(3):
        row = logits_of(1, seed=seed)[0].numpy()
        tokens, probabilities = naive_distribution(row, sampling)
        ends = np.cumsum(probabilities)
        for fraction in np.linspace(0, 1, 41, endpoint=False):
            at = int(np.searchsorted(ends, fraction, side="right"))
            if min(abs(ends - fraction)) < 1e-6:
                continue
            assert draw(row, sampling, float(fraction)) == tokens[min(at, len(tokens) - 1)]


@pytest.mark.parametrize("fields", FILTERS)
def test_the_ends_of_the_unit_interval(fields):
    sampling = params(**fields)
    row = logits_of(1, seed=5)[0].numpy()
    tokens, _ = naive_distribution(row, sampling)
    assert draw(row, sampling, 0.0) == tokens[0]
    assert draw(row, sampling, 1 - 2**-53) in tokens


@pytest.mark.parametrize(
    "fields", [{"top_p": 1e-9}, {"top_k": 1}, {"min_p": 1.0}, {"temperature": 1e-5}]
)
def test_one_candidate_is_the_argmax(fields):
    for seed in range(20):
        row = logits_of(1, seed=seed)[0].numpy()
        for fraction in (0.0, 0.5, 0.9999999):
            assert draw(row, params(**fields), fraction) == row.argmax()


def test_ties_go_by_token_id():
    row = row_of(1, 5, 5, 0, 5, 5)
    assert [draw(row, params(top_k=2), fraction) for fraction in (0.1, 0.4, 0.6, 0.9)] == [
        1,
        1,
        2,
        2,
    ]
    assert draw(row, params(top_p=1e-9), 0.9) == 1
    assert draw(row, params(top_k=1), 0.9) == 1
    assert {draw(row, params(min_p=1.0), at / 100) for at in range(100)} == {1, 2, 4, 5}
    flat = np.zeros(100, np.float32)
    assert [draw(flat, params(), at / 100 + 0.005) for at in range(100)] == list(range(100))


def test_many_ties_are_sorted_by_token_id():
    row = np.where(np.arange(5000) * 7919 % 11 < 5, np.float32(2), np.float32(1))
    expected = sorted(range(5000), key=lambda token: (-row[token], token))
    assert likeliest_ids(row, 3000).tolist() == expected[:3000]
    assert likeliest_ids(row, 5000).tolist() == expected


def test_mass_lost_by_rounding_goes_to_the_last_token_of_any_weight():
    cumulative = np.array([0.5, 0.75, 1.0, 1.0])
    targets = (0.0, 0.5, 0.9, 1.0, np.nextafter(1.0, 2))
    assert [_first_beyond(cumulative, target) for target in targets] == [0, 1, 2, 2, 2]


def test_logits_one_ulp_apart_keep_their_order():
    high = np.float32(7.0)
    row = np.full(50, np.nextafter(high, np.float32(0)), np.float32)
    row[31] = high
    assert draw(row, params(top_k=1, temperature=100.0), 0.99) == 31


def test_tokens_without_weight_are_never_drawn():
    row = np.full(1000, -np.inf, np.float32)
    row[500:503] = 0
    for fraction in (0.0, 0.5, 1 - 2**-53):
        assert draw(row, params(), fraction) in (500, 501, 502)
        assert draw(row, params(top_k=900), fraction) in (500, 501, 502)
        assert draw(row, params(top_p=0.9999999), fraction) in (500, 501, 502)
    row[:] = -200
    row[7] = 0
    assert draw(row, params(), 1 - 2**-53) == 7


@pytest.mark.parametrize("temperature", [1e-5, 1e-3, 1e10, 1e300])
def test_extreme_temperatures(temperature):
    row = logits_of(1)[0].numpy()
    tokens = {draw(row, params(temperature=temperature), at / 50) for at in range(50)}
    assert len(tokens) == (1 if temperature < 1 else 50)


@pytest.mark.parametrize(
    "fields", [{"temperature": 1.0}, {"top_p": 0.8}, {"top_k": 6}, {"min_p": 0.1}]
)
def test_drawn_tokens_fit_the_distribution(fields):
    row = logits_of(1, vocab=40, seed=3, spread=1.0)[0].numpy()
    tokens, probabilities = naive_distribution(row, params(**fields))
    count = 5_000
    drawn = [draw(row, params(**fields), keyed_fraction(11, 0, at)) for at in range(count)]
    found = np.array([drawn.count(token) for token in tokens])
    assert found.sum() == count
    expected = probabilities * count
    chi_square = float(((found - expected) ** 2 / expected).sum())
    freedom = len(tokens) - 1
    # Wilson and Hilferty's cube root, four standard deviations out.
    spread = 2 / (9 * freedom)
    assert chi_square < freedom * (1 - spread + 4 * math.sqrt(spread)) ** 3


def test_likeliest_ids():
    row = row_of(1, 9, 3, 9, 9, -1)
    assert likeliest_ids(row, 0).tolist() == []
    assert likeliest_ids(row, 2).tolist() == [1, 3]
    assert likeliest_ids(row, 4).tolist() == [1, 3, 4, 2]
    assert likeliest_ids(row, 9).tolist() == [1, 3, 4, 2, 0, 5]
