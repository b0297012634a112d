"""The edges of the engine, as protocols, with the promises that each side keeps.

Promises of an executor, tested with fakes that break each:

- Steps are executed in the order in which they are given; `execute` returns once a step.
- `Step` parts are applied in the order that `forebay.core.effects` gives.
- A sequence that stopped (stop token) yields no further token, even if later steps list it.
- `add` for a request comes before the first step that joins it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from forebay.core.effects import Step
from forebay.core.events import BlockFilled
from forebay.sampling_params import SamplingParams
from forebay.units import Nanos, RequestId, SeqId, StepSeq

_NO_TIME = Nanos(0)


@dataclass(slots=True, frozen=True, kw_only=True)
class ExecRequest:
    """What the executor must know of a request before any step joins it.

    `seed`: resolved, never None. `last_hash`: chained hash of the prompt's last full block (or
    the root hash), from which the executor goes on hashing; None without prefix cache.
    """

    request_id: RequestId
    prompt_token_ids: Sequence[int]
    sampling: SamplingParams
    seed: int
    stop_token_ids: frozenset[int]
    last_hash: bytes | None = None


@dataclass(slots=True, frozen=True)
class TokenLogprobs:
    """Log-probabilities at one position: the sampled token's, and the `k` likeliest asked for.

    `rank` is 1 for the likeliest token. `top` maps token id to log-probability, likeliest first.
    """

    logprob: float
    rank: int
    top: Mapping[int, float]


@dataclass(slots=True, kw_only=True)
class StepResult:
    """What one step brought. `seq_ids` and `token_ids` are parallel: one new token each."""

    seq: StepSeq
    seq_ids: list[SeqId] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: dict[SeqId, TokenLogprobs] = field(default_factory=dict)
    stops: list[SeqId] = field(default_factory=list)
    filled: list[BlockFilled] = field(default_factory=list)
    model_ns: Nanos = _NO_TIME
    """Time spent in the model itself."""


class Executor(Protocol):
    """Performs steps on a device. Used from one thread only."""

    def add(self, request: ExecRequest) -> None:
        """Takes a request's tokens and sampling parameters."""

    def execute(self, step: Step) -> StepResult:
        """Performs one step and blocks until its tokens are known. Raises `DeviceFault`."""

    def close(self) -> None:
        """Frees the device. Idempotent."""


class Clock(Protocol):
    """The only source of time in the engine."""

    def now(self) -> Nanos:
        """Monotonic time."""
