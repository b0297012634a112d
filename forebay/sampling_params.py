"""How the tokens of one request are chosen, under the names that vLLM users know.

Every field is checked when the object is made; a bad one raises `BadRequest` that names the
field, the value and what is allowed.
"""

import math
import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import cast

from forebay.errors import BadRequest
from forebay.units import MAX_BRANCHES

MAX_LOGPROBS = 20
"""Most alternatives a position may report. Source: vLLM 0.25.1, `max_logprobs`."""

GREEDY_BELOW = 1e-5
"""Temperatures below this are greedy. Source: vLLM 0.25.1, `_SAMPLING_EPS`."""

_MAX_INT = 2**31 - 1
_MIN_SEED = -(2**63)
_MAX_SEED = 2**64 - 1


@dataclass(slots=True, frozen=True)
class SamplingParams:
    """Sampling parameters of a request; defaults as in vLLM 0.25.1. Raises `BadRequest`.

    Unlike there, `n` is at most 8, `n` above 1 goes with greedy sampling too, and lists are kept
    as tuples, so that the object hashes.
    """

    n: int = 1
    """Sequences to generate, 1 to 8; the prompt is computed once."""
    temperature: float = 1.0
    """0 (or below 1e-5) is greedy: the likeliest token, the lowest id among equals."""
    top_p: float = 1.0
    """Keep the fewest likeliest tokens whose probability sums up to this; 1 keeps all."""
    top_k: int = 0
    """Keep this many likeliest tokens; 0 or -1 keeps all."""
    min_p: float = 0.0
    """Drop tokens less likely than this share of the likeliest; 0 keeps all."""
    presence_penalty: float = 0.0
    """Subtracted from the logit of every token in the output."""
    frequency_penalty: float = 0.0
    """Subtracted from a token's logit once for each time that it is in the output."""
    repetition_penalty: float = 1.0
    """Divides positive and multiplies negative logits of tokens in the prompt or the output."""
    seed: int | None = None
    """Same seed, same tokens. None (or -1): the engine draws one."""
    max_tokens: int | None = 16
    """Most output tokens of each sequence; None: up to the model's length."""
    min_tokens: int = 0
    """No stop token is sampled before this many output tokens."""
    stop: str | Sequence[str] | None = None
    """Strings that end a sequence; see `stop_strings`."""
    stop_token_ids: Sequence[int] | None = None
    """Token ids that end a sequence, besides the model's own; kept as a tuple, never None."""
    ignore_eos: bool = False
    """Go on after the model's own end-of-sequence tokens."""
    logprobs: int | None = None
    """Report the sampled token's log-probability and that many likeliest ones; None: nothing."""
    include_stop_str_in_output: bool = False
    """Keep the stop string at the end of the text."""
    skip_special_tokens: bool = True
    """Leave special tokens out of the text."""

    def __post_init__(self) -> None:
        for name in ("n", "top_k", "min_tokens"):
            self._set(name, _integer(name, getattr(self, name)))
        for name in ("seed", "max_tokens", "logprobs"):
            value = getattr(self, name)
            self._set(name, None if value is None else _integer(name, value))
        for name in ("temperature", "top_p", "min_p"):
            self._set(name, _number(name, getattr(self, name)))
        for name in ("presence_penalty", "frequency_penalty", "repetition_penalty"):
            self._set(name, _number(name, getattr(self, name)))
        for name in ("ignore_eos", "include_stop_str_in_output", "skip_special_tokens"):
            _check(isinstance(getattr(self, name), bool), name, getattr(self, name), "a bool")
        self._set("stop", _stop_strings(self.stop))
        self._set("stop_token_ids", _stop_token_ids(self.stop_token_ids))
        if self.seed == -1:
            self._set("seed", None)
        self._check_filters()
        self._check_lengths()

    @property
    def is_greedy(self) -> bool:
        """No randomness: the likeliest token is taken."""
        return self.temperature < GREEDY_BELOW

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """`stop` as it was checked: none, one or several non-empty strings."""
        return cast("tuple[str, ...]", self.stop)

    @property
    def has_penalties(self) -> bool:
        """Logits depend on the tokens so far."""
        return bool(
            self.presence_penalty or self.frequency_penalty or self.repetition_penalty != 1.0
        )

    def _check_filters(self) -> None:
        _check(self.temperature >= 0, "temperature", self.temperature, "0 (greedy) or more")
        _check(0 < self.top_p <= 1, "top_p", self.top_p, "above 0 and at most 1")
        _check(-1 <= self.top_k <= _MAX_INT, "top_k", self.top_k, "1 or more, or 0 or -1 for all")
        _check(0 <= self.min_p <= 1, "min_p", self.min_p, "from 0 to 1")
        for name in ("presence_penalty", "frequency_penalty"):
            value = getattr(self, name)
            _check(-2 <= value <= 2, name, value, "from -2 to 2")
        penalty = self.repetition_penalty
        _check(penalty > 0, "repetition_penalty", penalty, "above 0 (1 is none)")

    def _check_lengths(self) -> None:
        _check(1 <= self.n <= MAX_BRANCHES, "n", self.n, f"from 1 to {MAX_BRANCHES}")
        most = self.max_tokens
        _check(most is None or 1 <= most <= _MAX_INT, "max_tokens", most, "1 or more, or None")
        least = self.min_tokens
        if most is not None:
            _check(0 <= least <= most, "min_tokens", least, f"from 0 to max_tokens ({most})")
        _check(0 <= least <= _MAX_INT, "min_tokens", least, "0 or more")
        _check(
            self.logprobs is None or 0 <= self.logprobs <= MAX_LOGPROBS,
            "logprobs",
            self.logprobs,
            f"from 0 to {MAX_LOGPROBS}, or None",
        )
        _check(
            self.seed is None or _MIN_SEED <= self.seed <= _MAX_SEED,
            "seed",
            self.seed,
            "an integer of 64 bits, or None",
        )

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)


def _check(holds: bool, name: str, value: object, allowed: str) -> None:
    if not holds:
        raise BadRequest(f"{name} is {value!r}; it must be {allowed}")


def _integer(name: str, value: object) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise BadRequest(f"{name} is {value!r}, a {type(value).__name__}; it must be an integer")
    return operator.index(value)


def _number(name: str, value: object) -> float:
    is_number = hasattr(value, "__float__") or hasattr(value, "__index__")
    if isinstance(value, bool | str) or not is_number:
        raise BadRequest(f"{name} is {value!r}, a {type(value).__name__}; it must be a number")
    try:
        number = float(value)  # type: ignore[arg-type]  # it has __float__ or __index__
    except (TypeError, ValueError, OverflowError) as error:
        raise BadRequest(f"{name} is {value!r}; it must be a finite number") from error
    _check(math.isfinite(number), name, number, "a finite number")
    return number


def _items(name: str, value: object) -> tuple[object, ...]:
    if value is None:
        return ()
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        raise BadRequest(f"{name} is {value!r}, a {type(value).__name__}; it must be a list")
    return tuple(value)


def _stop_strings(stop: object) -> tuple[str, ...]:
    strings = (stop,) if isinstance(stop, str) else _items("stop", stop)
    for string in strings:
        _check(
            isinstance(string, str) and string != "", "stop", stop, "a non-empty string or several"
        )
    return cast("tuple[str, ...]", strings)


def _stop_token_ids(ids: object) -> tuple[int, ...]:
    checked = tuple(_integer("stop_token_ids", one) for one in _items("stop_token_ids", ids))
    for one in checked:
        _check(0 <= one <= _MAX_INT, "stop_token_ids", one, "token ids, 0 or more")
    return checked
