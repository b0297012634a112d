"""`LLM`: prompts in, finished outputs out. The blocking door, in the manner vLLM users know."""

import itertools
import threading
import weakref
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from forebay.config import EngineConfig
from forebay.engine.live import EngineStats, LiveEngine
from forebay.engine.outputs import CompletionOutput, Logprob, RequestMetrics, RequestOutput
from forebay.engine.record import NewRequest, RequestRecord
from forebay.errors import BadRequest
from forebay.prompts import (
    Messages,
    Prompt,
    TokenPrompt,
    chat_prompt,
    split_chats,
    split_prompts,
    token_prompts,
)
from forebay.sampling_params import SamplingParams
from forebay.units import Nanos

if TYPE_CHECKING:
    from forebay.startup import Started, StartupReport
    from forebay.text import TextTokenizer

__all__ = ["LLM", "CompletionOutput", "Logprob", "RequestMetrics", "RequestOutput"]


class LLM:
    """A model, loaded and ready. Safe to use from several threads at once.

    Settings are those of `EngineConfig`, by name. Raises on building: ConfigError for settings
    that cannot work, CapacityError for memory that does not suffice, ModelError for the model.
    """

    def __init__(self, model: str | None = None, **settings: Any) -> None:
        from forebay.startup import start

        self._adopt(start(EngineConfig.from_settings({"model": model, **settings})))

    @classmethod
    def from_config(cls, config: EngineConfig) -> Self:
        """The same from ready-made settings."""
        from forebay.startup import start

        config.check()
        return cls.from_started(start(config))

    @classmethod
    def from_started(cls, started: "Started") -> Self:
        """Around an engine that runs already, which it then owns."""
        llm = cls.__new__(cls)
        llm._adopt(started)
        return llm

    def _adopt(self, started: "Started") -> None:
        self._started = started
        self._engine: LiveEngine = started.engine
        self._names = itertools.count()
        # An LLM that is dropped, or alive when Python exits, gives its threads and memory back.
        self._finalizer = weakref.finalize(self, self._engine.close)

    @property
    def config(self) -> EngineConfig:
        """The settings as they were given."""
        return self._started.config

    @property
    def startup(self) -> "StartupReport":
        """How memory divides and what fits; print it."""
        return self._started.report

    def get_tokenizer(self) -> "TextTokenizer":
        """The model's tokenizer."""
        return self._started.tokenizer

    def stats(self) -> EngineStats:
        """Gauges and counters of the scheduler now; may be called while `generate` runs."""
        return self._engine.stats()

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        priority: Sequence[int] | None = None,
        deadline_ms: float | None = None,
    ) -> list[RequestOutput]:
        """Runs all prompts and returns their outputs in the same order.

        One `SamplingParams` is for all prompts; a list has one for each. `priority` (lower is
        more urgent) acts with `scheduling_policy="priority"`. What is not finished `deadline_ms`
        after the call ends with what it has, finish reason "deadline".

        Raises: RequestRefused before anything runs if any request is malformed or can never fit;
        DeviceFault if the engine dies. On KeyboardInterrupt all its requests are aborted first.
        """
        found = token_prompts(split_prompts(prompts), self.get_tokenizer())
        return self._run(found, sampling_params, priority, deadline_ms)

    def chat(
        self,
        messages: Messages | Sequence[Messages],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        priority: Sequence[int] | None = None,
        deadline_ms: float | None = None,
        **template_options: Any,
    ) -> list[RequestOutput]:
        """`generate` for one conversation or several, through the model's chat template.

        `template_options`: `chat_template`, `add_generation_prompt`, `tools`, `variables`.
        """
        tokenizer = self.get_tokenizer()
        found = [chat_prompt(one, tokenizer, **template_options) for one in split_chats(messages)]
        return self._run(found, sampling_params, priority, deadline_ms)

    def close(self) -> None:
        """Aborts what runs, ends the threads and frees memory. Idempotent."""
        self._finalizer()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _run(
        self,
        prompts: list[TokenPrompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None,
        priority: Sequence[int] | None,
        deadline_ms: float | None,
    ) -> list[RequestOutput]:
        if sampling_params is None:
            sampling_params = SamplingParams()
        params = _for_each("sampling_params", sampling_params, len(prompts))
        priorities = _for_each("priority", 0 if priority is None else priority, len(prompts))
        now = self._engine.clock.now()
        waiter = _Waiter(len(prompts))
        requests = [
            NewRequest(
                external_id=f"llm-{next(self._names)}",
                prompt=prompt.text,
                prompt_token_ids=prompt.token_ids,
                sampling=one,
                arrival_ns=now,
                priority=urgency,
                deadline_ns=deadline_after(now, deadline_ms),
                on_change=waiter.changed,
            )
            for prompt, one, urgency in zip(prompts, params, priorities, strict=True)
        ]
        for request in requests:
            self._engine.check(request)
        return self._collect(requests, waiter)

    def _collect(self, requests: list[NewRequest], waiter: "_Waiter") -> list[RequestOutput]:
        records: list[RequestRecord] = []
        try:
            for request in requests:
                records.append(self._engine.submit(request))
            waiter.wait()
        except BaseException:
            for request in requests:
                self._engine.abort(request.external_id)
            waiter.drop(len(requests) - len(records))
            waiter.wait()
            raise
        for record in records:
            if record.error is not None:
                raise record.error
        return [record.read() for record in records]


class _Waiter:
    """Waits until a number of requests have ended."""

    def __init__(self, num_open: int) -> None:
        self._lock = threading.Lock()
        self._num_open = num_open
        self._done = threading.Event()
        self.drop(0)

    def changed(self, record: RequestRecord) -> None:
        """A record has news; called on the engine's thread."""
        if record.finished:
            self.drop(1)

    def drop(self, num_ended: int) -> None:
        """So many fewer to wait for."""
        with self._lock:
            self._num_open -= num_ended
            if self._num_open <= 0:
                self._done.set()

    def wait(self) -> None:
        """Returns once all have ended."""
        self._done.wait()


def deadline_after(now: Nanos, deadline_ms: float | None) -> Nanos | None:
    """The absolute time `deadline_ms` after `now`. Raises `BadRequest` if it is not positive."""
    if deadline_ms is None:
        return None
    if isinstance(deadline_ms, bool) or not isinstance(deadline_ms, int | float):
        raise BadRequest(f"deadline_ms is {deadline_ms!r}; it must be a number, or None")
    if not 0 < deadline_ms < 1e12:
        raise BadRequest(f"deadline_ms is {deadline_ms!r}; it must be above 0, or None")
    return Nanos(now + round(deadline_ms * 1e6))


def _for_each(name: str, given: Any, num_prompts: int) -> list[Any]:  # Any: either kind of value
    """One value for every prompt; a single one stands for all."""
    if not isinstance(given, Sequence):
        return [given] * num_prompts
    if len(given) != num_prompts:
        raise BadRequest(f"{name} has {len(given)} entries for {num_prompts} prompts")
    return list(given)
