"""Which token comes next, from one row of logits and one sequence's parameters.

Every row is computed by itself, in one fixed order and with randomness that is keyed by (seed,
branch, output position): the token depends neither on the rest of the batch nor on how often the
sequence was preempted.

Order of the transformations, as in vLLM 0.25.1: log-probabilities are taken from the raw logits;
then stop tokens are masked before `min_tokens`, penalties, temperature, min-p, top-k, top-p.
"""

import math
from array import array
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from forebay.engine.ports import TokenLogprobs
from forebay.errors import DeviceFault
from forebay.exec.ledger import Work
from forebay.exec.token_buffers import TokenBuffer, TokenCounts
from forebay.sampling_params import SamplingParams
from forebay.units import SeqId, keyed_fraction

FloatArray = NDArray[np.float32]

# Sorting a whole vocabulary costs as much as sampling twenty rows does, so tokens are thrown into
# buckets by logit, and only the bucket that matters is sorted. The last takes all from 64 nats on.
_BUCKETS_PER_NAT = 16
_LAST_BUCKET = 1023
_LANES = 64
# Stronger repetition penalties leave the range of float32, and are no different within it.
_STRONGEST_PENALTY = 2.0**60
# Beyond this temperature all differences of float32 logits vanish anyway.
_HOTTEST = 1e30


@dataclass(slots=True, frozen=True)
class Drawn:
    """The sampled tokens, parallel to `Work.buffers`, and what was asked about some of them."""

    token_ids: list[int]
    logprobs: dict[SeqId, TokenLogprobs] = field(default_factory=dict)


def sample(logits: torch.Tensor, work: Work) -> Drawn:
    """Samples for all of `work.buffers` from float32 logits (N, vocab).

    Raises `DeviceFault` when the likeliest logit of a row is not a finite number.
    """
    best = _likeliest(logits)
    drawn = Drawn(best[work.logits_rows].tolist())
    if not len(work.special):
        return drawn
    rows, places = _on_host(logits, work.logits_rows[work.special])
    for at, place in zip(work.special.tolist(), places.tolist(), strict=True):
        buffer = work.buffers[at]
        row = rows[place]
        token_id = next_token(row, buffer)
        drawn.token_ids[at] = token_id
        if buffer.request.sampling.logprobs is not None:
            told = token_logprobs(row, token_id, buffer.request.sampling.logprobs)
            drawn.logprobs[buffer.seq_id] = told
    return drawn


def next_token(row: FloatArray, buffer: TokenBuffer) -> int:
    """The next token of one sequence from its raw logits (vocab,), which stay as they are."""
    sampling = buffer.request.sampling
    row = _processed(row, buffer)
    if sampling.is_greedy:
        return int(row.argmax())
    return draw(
        row, sampling, keyed_fraction(buffer.request.seed, buffer.branch, buffer.num_output)
    )


def token_logprobs(row: FloatArray, token_id: int, num_top: int) -> TokenLogprobs:
    """Log-probabilities under the raw logits (vocab,): of one token and the `num_top` likeliest.

    Among equals the lower id is likelier, in `rank` and `top` alike.
    """
    top = row.max()
    log_total = math.log(np.exp(row - top).sum(dtype=np.float64)) + float(top)
    own = row[token_id]
    rank = 1 + int(np.count_nonzero(row > own)) + int(np.count_nonzero(row[:token_id] == own))
    best = likeliest_ids(row, num_top)
    return TokenLogprobs(
        logprob=float(own) - log_total,
        rank=rank,
        top={token: float(row[token]) - log_total for token in best.tolist()},
    )


def likeliest_ids(row: FloatArray, count: int) -> NDArray[np.intp]:
    """The ids of the `count` largest entries, largest first, lower ids first among equals."""
    size = len(row)
    if count >= size:
        return _sorted(row, np.arange(size))
    if count == 0:
        return np.empty(0, np.intp)
    # At least `count` entries reach the count-th largest of the maxima of disjoint groups.
    num_groups = size // _LANES
    groups = row[: num_groups * _LANES].reshape(_LANES, num_groups).max(axis=0)
    among = groups if count <= num_groups else row
    least = np.partition(among, len(among) - count)[len(among) - count]
    return _sorted(row, np.flatnonzero(row >= least))[:count]


def draw(row: FloatArray, sampling: SamplingParams, fraction: float) -> int:
    """The token at `0 <= fraction < 1` of the distribution that `sampling` makes of a row.

    Tokens lie in the order of `likeliest_ids`, so that every filter keeps a prefix.
    """
    hotness = np.float32(min(sampling.temperature, _HOTTEST))
    scaled = (row - row.max()) / hotness
    weights = np.exp(scaled)
    if sampling.top_k > 0:
        ids = likeliest_ids(row, sampling.top_k)
    elif sampling.min_p > 0:
        ids = _sorted(row, np.flatnonzero(weights >= sampling.min_p))
    else:
        return _draw_from_all(_Buckets(row, scaled, weights), sampling.top_p, fraction)
    if sampling.min_p > 0:
        ids = ids[weights[ids] >= sampling.min_p]  # the likeliest has weight 1
    cumulative = np.cumsum(weights[ids], dtype=np.float64)
    if sampling.top_p < 1:
        end = _first_reaching(cumulative, sampling.top_p * cumulative[-1])
        cumulative = cumulative[: end + 1]
    return int(ids[_first_beyond(cumulative, fraction * cumulative[-1])])


class _Buckets:
    """All tokens, by how far below the likeliest they are; sorted on demand."""

    def __init__(self, row: FloatArray, scaled: FloatArray, weights: FloatArray) -> None:
        self._row = row
        self._weights = weights
        depth = np.minimum(scaled * -_BUCKETS_PER_NAT, _LAST_BUCKET)
        self._bucket_of = depth.astype(np.intp)
        self.ends: NDArray[np.float64] = np.cumsum(np.bincount(self._bucket_of, weights=weights))
        """The mass up to the end of each bucket."""

    def opened(self, bucket: int) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
        """A bucket's tokens in order, and the mass up to the end of each."""
        ids = _sorted(self._row, np.flatnonzero(self._bucket_of == bucket))
        before = self.ends[bucket - 1] if bucket else 0.0
        return ids, before + np.cumsum(self._weights[ids], dtype=np.float64)


def _draw_from_all(buckets: _Buckets, top_p: float, fraction: float) -> int:
    """`draw` without top-k and min-p, where few tokens can be ruled out beforehand."""
    mass = buckets.ends[-1]
    if top_p < 1:
        last = _first_reaching(buckets.ends, top_p * mass)
        ids, cumulative = buckets.opened(last)
        kept = cumulative[: _first_reaching(cumulative, top_p * mass) + 1]
        mass = kept[-1]
        if last == 0 or fraction * mass >= buckets.ends[last - 1]:
            return int(ids[_first_beyond(kept, fraction * mass)])
    ids, cumulative = buckets.opened(_first_beyond(buckets.ends, fraction * mass))
    return int(ids[_first_beyond(cumulative, fraction * mass)])


def _first_reaching(cumulative: NDArray[np.float64], target: float) -> int:
    """The first place whose cumulative mass is at least `target`, or else the last one."""
    return min(int(np.searchsorted(cumulative, target)), len(cumulative) - 1)


def _first_beyond(cumulative: NDArray[np.float64], target: float) -> int:
    """The first place whose cumulative mass is above `target`: it has a weight of its own.

    Mass that was summed in another order may leave the target a hair beyond the end: then the
    last place of any weight.
    """
    at = int(np.searchsorted(cumulative, target, side="right"))
    return min(at, int(np.searchsorted(cumulative, cumulative[-1])))


def _sorted(row: FloatArray, ids: NDArray[np.intp]) -> NDArray[np.intp]:
    """Ascending ids by descending logit; stable, so that equals keep the order of their ids."""
    return ids[np.argsort(-row[ids], kind="stable")]


def _processed(row: FloatArray, buffer: TokenBuffer) -> FloatArray:
    """Logits after the mask of stop tokens and the penalties: a copy where anything changes."""
    sampling = buffer.request.sampling
    is_masked = buffer.num_output < sampling.min_tokens and buffer.stop_token_ids
    if not is_masked and not sampling.has_penalties:
        return row
    row = row.copy()
    if is_masked:
        row[[token for token in buffer.stop_token_ids if token < len(row)]] = -np.inf
    if sampling.has_penalties:
        if buffer.counts is None:
            buffer.counts = TokenCounts(buffer.tokens[: buffer.num_prompt])
        buffer.counts.catch_up(buffer)
        _penalise(row, sampling, buffer.counts)
    return row


def _penalise(row: FloatArray, sampling: SamplingParams, counts: TokenCounts) -> None:
    """Applies the three penalties in place. Source: vLLM 0.25.1, `apply_penalties`."""
    if sampling.repetition_penalty != 1.0:
        present = _ids(counts.present_ids)
        logits = row[present]
        strength = min(max(sampling.repetition_penalty, 1 / _STRONGEST_PENALTY), _STRONGEST_PENALTY)
        factor = np.float32(strength)
        row[present] = np.where(logits > 0, logits / factor, logits * factor)
    ids = _ids(counts.ids)
    row[ids] -= np.float32(sampling.frequency_penalty) * _ids(counts.counts).astype(np.float32)
    row[ids] -= np.float32(sampling.presence_penalty)


def _ids(ids: "array[int]") -> NDArray[np.int64]:
    # A copy: a view would forbid the array to grow.
    return np.array(ids, np.int64)


def _likeliest(logits: torch.Tensor) -> NDArray[np.int64]:
    """The id of each row's largest logit (N,), the lowest among equals."""
    if logits.device.type == "cpu":
        # Ten times faster than torch's on one row after another.
        rows = logits.numpy()
        best: NDArray[np.int64] = rows.argmax(axis=1)
        values = rows[np.arange(len(rows)), best]
    else:
        on_device = logits.argmax(dim=1, keepdim=True)
        values = logits.gather(1, on_device)[:, 0].cpu().numpy()
        best = on_device[:, 0].cpu().numpy()
    if not np.isfinite(values).all():
        at = int(np.flatnonzero(~np.isfinite(values))[0])
        raise DeviceFault(f"the likeliest logit of sampled row {at} is {values[at]}")
    return best


def _on_host(
    logits: torch.Tensor, wanted: NDArray[np.int32]
) -> tuple[FloatArray, NDArray[np.integer]]:
    """Rows of logits in host memory, at least the wanted ones, and where each of those is."""
    if logits.device.type == "cpu":
        return logits.numpy(), wanted
    distinct, places = np.unique(wanted, return_inverse=True)
    picked = logits[torch.from_numpy(distinct.astype(np.int64)).to(logits.device)]
    return picked.cpu().numpy(), places
