"""From what a caller asks for to what the machine and the executor must know."""

from dataclasses import dataclass
from hashlib import blake2b

from forebay.block_hash import prompt_hashes
from forebay.core.effects import Refuse, RefuseReason
from forebay.core.events import Arrive
from forebay.core.intake import judge
from forebay.core.limits import Limits
from forebay.engine.ports import ExecRequest
from forebay.engine.record import NewRequest
from forebay.errors import BadRequest, NeverFits, RequestRefused
from forebay.sampling_params import SamplingParams
from forebay.units import RequestId


@dataclass(slots=True, frozen=True, kw_only=True)
class Vocabulary:
    """What requests are checked against and hashed by.

    `prefix_root`: the hash from which prompts are chained; None without prefix cache.
    """

    size: int
    eos_token_ids: frozenset[int]
    block_size: int
    prefix_root: bytes | None = None


@dataclass(slots=True, frozen=True)
class Prepared:
    """A request as the machine and as the executor will see it."""

    arrive: Arrive
    for_executor: ExecRequest


def check_fits(request: NewRequest, vocabulary: Vocabulary, limits: Limits) -> None:
    """Raises `BadRequest` or `NeverFits` if `request` can never run on an engine of such size."""
    if not isinstance(request.sampling, SamplingParams):
        raise BadRequest(f"sampling_params holds {request.sampling!r}, which is no SamplingParams")
    if isinstance(request.priority, bool) or not isinstance(request.priority, int):
        raise BadRequest(f"priority is {request.priority!r}; it must be a whole number")
    prompt = request.prompt_token_ids
    if prompt and not 0 <= min(prompt) <= max(prompt) < vocabulary.size:
        wrong = next(token for token in prompt if not 0 <= token < vocabulary.size)
        raise BadRequest(
            f"token id {wrong} is outside the vocabulary: 0 to {vocabulary.size - 1} are known"
        )
    _check_some_token_may_come(request.sampling, vocabulary)
    # Hashes play no part in the verdict.
    verdict = judge(_arrive(request, RequestId(0), ()), limits)
    if isinstance(verdict, Refuse):
        raise refused(verdict)


def refused(refuse: Refuse) -> RequestRefused:
    """The error for a request that the machine does not take."""
    match refuse.reason:
        case RefuseReason.BAD_SHAPE:
            return BadRequest(refuse.message)
        case RefuseReason.TOO_LONG | RefuseReason.NEVER_FITS:
            return NeverFits(refuse.message)


def prepare(
    request: NewRequest, number: RequestId, vocabulary: Vocabulary, engine_seed: int
) -> Prepared:
    """Hashes the prompt, resolves seed and stop tokens."""
    params = request.sampling
    hashes: tuple[bytes, ...] = ()
    last = vocabulary.prefix_root
    if last is not None:
        hashes = prompt_hashes(last, request.prompt_token_ids, vocabulary.block_size)
        last = hashes[-1] if hashes else last
    return Prepared(
        _arrive(request, number, hashes),
        ExecRequest(
            request_id=number,
            prompt_token_ids=request.prompt_token_ids,
            sampling=params,
            seed=params.seed if params.seed is not None else _drawn_seed(engine_seed, number),
            stop_token_ids=_stop_token_ids(params, vocabulary),
            last_hash=last,
        ),
    )


def _stop_token_ids(params: SamplingParams, vocabulary: Vocabulary) -> frozenset[int]:
    stops = frozenset(params.stop_token_ids or ())
    return stops if params.ignore_eos else stops | vocabulary.eos_token_ids


def _check_some_token_may_come(params: SamplingParams, vocabulary: Vocabulary) -> None:
    if params.min_tokens == 0:
        return
    stops = _stop_token_ids(params, vocabulary)
    if sum(0 <= token < vocabulary.size for token in stops) == vocabulary.size:
        raise BadRequest(
            f"every token ends the sequence, but min_tokens {params.min_tokens} forbids that: "
            "list fewer stop_token_ids, or leave min_tokens at 0"
        )


def _arrive(request: NewRequest, number: RequestId, hashes: tuple[bytes, ...]) -> Arrive:
    params = request.sampling
    return Arrive(
        request_id=number,
        arrival_ns=request.arrival_ns,
        num_prompt=len(request.prompt_token_ids),
        # Without a bound of its own it runs to max_model_len, where the machine ends it.
        max_tokens=params.max_tokens if params.max_tokens is not None else _UNBOUNDED,
        num_branches=params.n,
        priority=request.priority,
        deadline_ns=request.deadline_ns,
        runs_to_limit=params.ignore_eos and not params.stop_strings and not params.stop_token_ids,
        block_hashes=hashes,
    )


_UNBOUNDED = 2**31 - 1


def _drawn_seed(engine_seed: int, number: RequestId) -> int:
    """A seed for a request that brought none: the same for the same place in the same engine."""
    key = engine_seed.to_bytes(16, "little") + number.to_bytes(8, "little")
    return int.from_bytes(blake2b(key, digest_size=8).digest(), "little") >> 1
