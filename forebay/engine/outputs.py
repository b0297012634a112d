"""What callers get back, in the shapes that vLLM users know, and what each request went through."""

from dataclasses import dataclass
from typing import Literal

FinishName = Literal["stop", "length", "abort", "deadline", "kv_capacity", "ignored", "error"]
"""Why a sequence ended, as it goes over the wire."""


@dataclass(slots=True, frozen=True)
class Logprob:
    """Log-probability of one token at one position; `rank` is 1 for the likeliest."""

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


@dataclass(slots=True, frozen=True, kw_only=True)
class CompletionOutput:
    """One continuation of a prompt.

    `text` ends before a stop string; `token_ids` and `logprobs` hold every sampled token, the
    stopping one too. `stop_reason`: the stop string or stop token id that ended it; None for the
    model's own end token.
    """

    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None = None
    logprobs: list[dict[int, Logprob]] | None = None
    finish_reason: FinishName | None = None
    stop_reason: int | str | None = None

    @property
    def finished(self) -> bool:
        """Whether nothing more will come."""
        return self.finish_reason is not None


@dataclass(slots=True, frozen=True, kw_only=True)
class RequestMetrics:
    """What a request went through. Times in seconds since its arrival; None: not yet.

    `queue_s`: until it was first admitted, known once it has ended. `recomputed_tokens` were
    computed again after a preemption; `swapped_blocks` were copied to host memory. Until the
    request has ended, the counts are zero.
    """

    queue_s: float | None = None
    first_token_s: float | None = None
    last_token_s: float | None = None
    finished_s: float | None = None
    num_preemptions: int = 0
    num_swaps: int = 0
    recomputed_tokens: int = 0
    cached_tokens: int = 0
    swapped_blocks: int = 0


@dataclass(slots=True, frozen=True, kw_only=True)
class RequestOutput:
    """A prompt and what has been generated for it so far, or since the last output (delta)."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool
    metrics: RequestMetrics
    notice: str | None = None
    """Set when the output was capped because the KV pool can never hold all that was asked."""
    error: str | None = None
    """What went wrong, when `finish_reason` is "error"."""

    @property
    def num_cached_tokens(self) -> int:
        """Prompt tokens that the prefix cache held."""
        return self.metrics.cached_tokens
