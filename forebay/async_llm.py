"""`AsyncLLM`: many concurrent requests on asyncio, with streaming, abort and deadlines."""

import asyncio
import contextlib
import uuid
import weakref
from collections.abc import AsyncGenerator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

from forebay.config import EngineConfig
from forebay.engine.live import EngineStats, LiveEngine
from forebay.engine.outputs import RequestOutput
from forebay.engine.record import NewRequest, RequestRecord
from forebay.errors import BadRequest, ForebayError, RequestRefused
from forebay.llm import deadline_after
from forebay.prompts import Messages, Prompt, chat_prompt, token_prompts
from forebay.sampling_params import SamplingParams

if TYPE_CHECKING:
    from forebay.startup import Started, StartupReport
    from forebay.text import TextTokenizer

OutputKind = Literal["cumulative", "delta", "final"]
"""What each output of a stream holds: all so far, the news, or only the end result."""

_KINDS = ("cumulative", "delta", "final")
_LONG_TEXT = 8_192
"""Characters above which tokenising is moved off the event loop: about a millisecond of work."""


class AsyncLLM:
    """A model, loaded and ready, for one event loop or several. Building it blocks.

    Settings are those of `EngineConfig`, by name; what it raises is what `LLM` raises.
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
        self._finalizer = weakref.finalize(self, self._engine.close)

    @property
    def config(self) -> EngineConfig:
        """The settings as they were given."""
        return self._started.config

    @property
    def startup(self) -> "StartupReport":
        """How memory divides and what fits; print it."""
        return self._started.report

    @property
    def dead_error(self) -> ForebayError | None:
        """What killed the engine; None while it lives."""
        return self._engine.fault

    @property
    def errored(self) -> bool:
        """Whether the engine is dead."""
        return self._engine.fault is not None

    def get_tokenizer(self) -> "TextTokenizer":
        """The model's tokenizer."""
        return self._started.tokenizer

    async def stats(self) -> EngineStats:
        """Gauges and counters of the scheduler now."""
        return await asyncio.to_thread(self._engine.stats)

    async def generate(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        *,
        request_id: str | None = None,
        priority: int = 0,
        deadline_ms: float | None = None,
        output_kind: OutputKind = "cumulative",
    ) -> AsyncGenerator[RequestOutput, None]:
        """Streams the outputs of one prompt; the last one has `finished` set.

        A reader that is slow gets fewer, larger outputs. Leaving the loop early, or cancelling
        the task, aborts the request (wrap it in `contextlib.aclosing` to have that at once). If
        the engine dies meanwhile, the last output has finish reason "error" and says why.

        Raises: RequestRefused for a request that is malformed, can never fit, or whose
        `request_id` is in use; what killed the engine, if it is dead.
        """
        if output_kind not in _KINDS:
            raise BadRequest(f"output_kind is {output_kind!r}; it must be one of {_KINDS}")
        if isinstance(prompt, str) and len(prompt) > _LONG_TEXT:
            [found] = await asyncio.to_thread(token_prompts, [prompt], self.get_tokenizer())
        else:
            [found] = token_prompts([prompt], self.get_tokenizer())
        signal = _Signal()
        name = _request_name(request_id)
        now = self._engine.clock.now()
        record = self._engine.submit(
            NewRequest(
                external_id=name,
                prompt=found.text,
                prompt_token_ids=found.token_ids,
                sampling=SamplingParams() if sampling_params is None else sampling_params,
                arrival_ns=now,
                priority=priority,
                deadline_ns=deadline_after(now, deadline_ms),
                on_change=signal.changed,
            )
        )
        try:
            reader = _Reader(record, signal, output_kind)
            while True:
                output = await reader.next_output()
                yield output
                if output.finished:
                    return
        finally:
            if not record.finished:
                self._engine.abort(record.request.external_id)

    def chat(
        self,
        messages: Messages,
        sampling_params: SamplingParams | None = None,
        *,
        template_options: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> AsyncGenerator[RequestOutput, None]:
        """`generate` for one conversation, through the model's chat template.

        `template_options`: `chat_template`, `add_generation_prompt`, `tools`, `variables`.
        `options`: those of `generate`.
        """
        found = chat_prompt(messages, self.get_tokenizer(), **(template_options or {}))
        prompt = {"prompt": found.text, "prompt_token_ids": found.token_ids}
        return self.generate(prompt, sampling_params, **options)

    async def abort(self, request_id: str) -> None:
        """Ends a request, whatever its state; unknown and ended ones are ignored."""
        self._engine.abort(request_id)

    async def close(self) -> None:
        """Aborts what runs, ends the threads and frees memory. Idempotent."""
        await asyncio.to_thread(self._finalizer)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()


def _request_name(request_id: str | None) -> str:
    """The caller's name for a request, or one that no caller has chosen."""
    if request_id is None:
        return f"async-{uuid.uuid4().hex}"
    if not isinstance(request_id, str) or not request_id:
        raise BadRequest(f"request_id is {request_id!r}; it must be a non-empty string, or None")
    return request_id


class _Reader:
    """Reads one record: whatever came between two reads is one output."""

    def __init__(self, record: RequestRecord, signal: "_Signal", kind: OutputKind) -> None:
        self._record = record
        self._signal = signal
        self._kind = kind
        self._cursor = record.start_cursor()

    async def next_output(self) -> RequestOutput:
        """The next output that has something new. Raises what the request was refused with."""
        record = self._record
        while True:
            await self._signal.wait()
            if isinstance(record.error, RequestRefused):
                raise record.error
            if self._kind == "final" and not record.finished:
                continue
            is_delta = self._kind == "delta"
            output = record.read_since(self._cursor) if is_delta else record.read()
            if output.finished or any(one.token_ids or one.finished for one in output.outputs):
                return output


class _Signal:
    """Wakes one reader on its event loop; many changes before it wakes are one call."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._event = asyncio.Event()
        self._is_under_way = False

    def changed(self, _record: RequestRecord) -> None:
        """The record has news; called on the engine's thread."""
        if self._is_under_way:
            return
        self._is_under_way = True
        # A loop that has been closed has no reader left.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._wake)

    async def wait(self) -> None:
        """Returns once there is news since the last call."""
        await self._event.wait()
        self._event.clear()

    def _wake(self) -> None:
        self._is_under_way = False
        self._event.set()
