"""One request as its caller sees it: tokens, text, stop strings and how each sequence ended.

Written by the engine's thread, read by any other; the lock is held for a few microseconds. A
reader that is slow misses nothing and piles up nothing: it reads what has come in the meantime.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from forebay.core.effects import RequestReport
from forebay.core.events import FinishReason
from forebay.engine.outputs import (
    CompletionOutput,
    FinishName,
    Logprob,
    RequestMetrics,
    RequestOutput,
)
from forebay.engine.ports import TokenLogprobs
from forebay.errors import ForebayError
from forebay.sampling_params import SamplingParams
from forebay.units import NANOS_PER_S, Nanos

_NAMES: dict[FinishReason, FinishName] = {
    FinishReason.STOP: "stop",
    FinishReason.LENGTH: "length",
    FinishReason.ABORT: "abort",
    FinishReason.DEADLINE: "deadline",
    FinishReason.KV_CAPACITY: "kv_capacity",
    FinishReason.IGNORED: "ignored",
    FinishReason.ERROR: "error",
}


class TextPiece(Protocol):
    """Text that is certain after some tokens."""

    @property
    def text(self) -> str:
        """What follows the text given before."""


class SequenceText(Protocol):
    """Turns one sequence's tokens into text and watches for stop strings."""

    @property
    def stop(self) -> str | None:
        """The stop string that ended the text, once there is one."""

    def push(self, ids: list[int], *, may_stop: bool = True) -> TextPiece:
        """Takes the next tokens."""

    def finish(self, *, may_stop: bool = True) -> TextPiece:
        """Gives what was held back, now that nothing follows."""


@dataclass(slots=True, frozen=True, kw_only=True)
class NewRequest:
    """What a caller asks for, checked as far as one can without the engine.

    `deadline_ns` is absolute. `on_change` is called on the engine's thread whenever the record
    has something new; it must return at once and never raise.
    """

    external_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    sampling: SamplingParams
    arrival_ns: Nanos
    priority: int = 0
    deadline_ns: Nanos | None = None
    on_change: Callable[["RequestRecord"], None] = lambda _record: None


@dataclass(slots=True, eq=False)
class _Branch:
    """One continuation as it grows."""

    text: SequenceText
    tokens: list[int] = field(default_factory=list)
    pieces: list[str] = field(default_factory=list)
    num_chars: int = 0
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    shown: list[dict[int, Logprob]] = field(default_factory=list)
    total_logprob: float = 0.0
    stop_reason: int | str | None = None
    finish: FinishReason | None = None

    def add_text(self, piece: TextPiece) -> None:
        if piece.text:
            self.pieces.append(piece.text)
            self.num_chars += len(piece.text)

    def whole_text(self) -> str:
        if len(self.pieces) > 1:
            self.pieces[:] = ["".join(self.pieces)]
        return self.pieces[0] if self.pieces else ""


@dataclass(slots=True)
class Cursor:
    """How far a reader of deltas has read each branch: tokens and characters."""

    tokens: list[int]
    chars: list[int]


class RequestRecord:
    """The output side of one request."""

    def __init__(
        self,
        request: NewRequest,
        *,
        new_text: Callable[[NewRequest], SequenceText],
        token_text: Callable[[int], str | None],
    ) -> None:
        self.request = request
        self.error: ForebayError | None = None
        """Why it was refused, or failed; None in all other cases."""
        self._new_text = new_text
        self._token_text = token_text
        self._lock = threading.Lock()
        self._branches = [_Branch(new_text(request)) for _ in range(request.sampling.n)]
        self._report: RequestReport | None = None
        self._notice: str | None = None
        self._first_ns: Nanos | None = None
        self._last_ns: Nanos | None = None
        self._finished_ns: Nanos | None = None

    @property
    def finished(self) -> bool:
        """Whether nothing more will come."""
        return self._finished_ns is not None

    def take(self, branch: int, token: int, logprobs: TokenLogprobs | None, now: Nanos) -> bool:
        """Takes one sampled token; returns whether a stop string ends the sequence with it.

        Tokens for a sequence that has ended, or that a stop string has ended, are dropped: a
        step in flight may still bring them.
        """
        with self._lock:
            row = self._branches[branch]
            if row.finish is not None or row.stop_reason is not None:
                return False
            self._append(row, token, logprobs, now)
            may_stop = len(row.tokens) > self.request.sampling.min_tokens
            row.add_text(row.text.push([token], may_stop=may_stop))
            row.stop_reason = row.text.stop
            return row.stop_reason is not None

    def take_stop_token(
        self, branch: int, token: int, logprobs: TokenLogprobs | None, now: Nanos
    ) -> None:
        """Takes the token at which the executor stopped; it is no part of the text."""
        with self._lock:
            row = self._branches[branch]
            if row.finish is not None or row.stop_reason is not None:
                return
            self._append(row, token, logprobs, now)
            params = self.request.sampling
            if params.include_stop_str_in_output:
                row.add_text(row.text.push([token], may_stop=False))
            if token in (params.stop_token_ids or ()):
                row.stop_reason = token

    def end(
        self,
        branch: int,
        reason: FinishReason,
        num_output: int,
        report: RequestReport | None,
        now: Nanos,
    ) -> None:
        """A sequence ended after `num_output` tokens; with `report`, the whole request did."""
        with self._lock:
            row = self._branches[branch]
            if num_output < len(row.tokens):
                self._trim(row, num_output)
            self._close(row, reason)
            if report is not None:
                self._report = report
                self._close_all(reason, now)

    def cap(self, message: str) -> None:
        """The request was taken, but its output will be shorter than asked."""
        with self._lock:
            self._notice = message

    def fail(self, error: ForebayError, now: Nanos) -> None:
        """The request was refused, or the engine died: whatever is open ends with an error."""
        with self._lock:
            self.error = error
            self._close_all(FinishReason.ERROR, now)

    def read(self) -> RequestOutput:
        """Everything so far."""
        with self._lock:
            return self._output([0] * len(self._branches), [0] * len(self._branches))

    def start_cursor(self) -> Cursor:
        """A cursor from which nothing has been read."""
        return Cursor([0] * len(self._branches), [0] * len(self._branches))

    def read_since(self, cursor: Cursor) -> RequestOutput:
        """Tokens and text since the last call with this cursor, which is moved on."""
        with self._lock:
            output = self._output(cursor.tokens, cursor.chars)
            cursor.tokens = [len(row.tokens) for row in self._branches]
            cursor.chars = [row.num_chars for row in self._branches]
            return output

    def _append(self, row: _Branch, token: int, logprobs: TokenLogprobs | None, now: Nanos) -> None:
        row.tokens.append(token)
        if logprobs is not None:
            row.logprobs.append(logprobs)
            row.total_logprob += logprobs.logprob
        self._first_ns = self._first_ns if self._first_ns is not None else now
        self._last_ns = now

    def _trim(self, row: _Branch, num_output: int) -> None:
        kept, logprobs = row.tokens[:num_output], row.logprobs[:num_output]
        fresh = _Branch(self._new_text(self.request), kept, logprobs=logprobs)
        for place, token in enumerate(kept, start=1):
            may_stop = place > self.request.sampling.min_tokens
            fresh.add_text(fresh.text.push([token], may_stop=may_stop))
        row.text, row.tokens, row.logprobs = fresh.text, kept, logprobs
        row.pieces, row.num_chars = fresh.pieces, fresh.num_chars
        del row.shown[num_output:]
        row.total_logprob = sum(at.logprob for at in logprobs)
        row.stop_reason = None

    def _close(self, row: _Branch, reason: FinishReason) -> None:
        if row.finish is None:
            row.finish = reason
            # A stop that only the end of the stream completes would contradict `reason`.
            row.add_text(row.text.finish(may_stop=False))

    def _close_all(self, reason: FinishReason, now: Nanos) -> None:
        # A group that ends before its prompt is done has only its first sequence in the machine.
        for row in self._branches:
            self._close(row, reason)
        if self._finished_ns is None:
            self._finished_ns = now

    def _output(self, tokens: list[int], chars: list[int]) -> RequestOutput:
        request = self.request
        return RequestOutput(
            request_id=request.external_id,
            prompt=request.prompt,
            prompt_token_ids=request.prompt_token_ids,
            outputs=[
                self._completion(index, row, tokens[index], chars[index])
                for index, row in enumerate(self._branches)
            ],
            finished=self.finished,
            metrics=self._metrics(),
            notice=self._notice,
            error=None if self.error is None else str(self.error),
        )

    def _completion(self, index: int, row: _Branch, token: int, char: int) -> CompletionOutput:
        wants_logprobs = self.request.sampling.logprobs is not None
        text = row.whole_text()
        return CompletionOutput(
            index=index,
            text=text[char:] if char else text,
            token_ids=row.tokens[token:],
            cumulative_logprob=row.total_logprob if wants_logprobs else None,
            logprobs=self._logprobs(row, token) if wants_logprobs else None,
            finish_reason=None if row.finish is None else _NAMES[row.finish],
            stop_reason=row.stop_reason if row.finish is FinishReason.STOP else None,
        )

    def _logprobs(self, row: _Branch, start: int) -> list[dict[int, Logprob]]:
        # Kept, for a stream shows all of them again with every token.
        done = len(row.shown)
        for token, at in zip(row.tokens[done:], row.logprobs[done:], strict=True):
            position = {token: Logprob(at.logprob, at.rank, self._token_text(token))}
            for rank, (other, logprob) in enumerate(at.top.items(), start=1):
                position.setdefault(other, Logprob(logprob, rank, self._token_text(other)))
            row.shown.append(position)
        return row.shown[start:]

    def _metrics(self) -> RequestMetrics:
        report = self._report
        queue_ns = report.queue_ns if report else None
        return RequestMetrics(
            queue_s=None if queue_ns is None else queue_ns / NANOS_PER_S,
            first_token_s=self._seconds(self._first_ns),
            last_token_s=self._seconds(self._last_ns),
            finished_s=self._seconds(self._finished_ns),
            num_preemptions=report.num_preemptions if report else 0,
            num_swaps=report.num_swaps if report else 0,
            recomputed_tokens=report.recomputed_tokens if report else 0,
            cached_tokens=report.cached_tokens if report else 0,
            swapped_blocks=report.swapped_blocks if report else 0,
        )

    def _seconds(self, at: Nanos | None) -> float | None:
        return None if at is None else (at - self.request.arrival_ns) / NANOS_PER_S
