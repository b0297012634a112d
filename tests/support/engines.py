"""Live engines over the executor without a model, for tests of what stands on the scheduler."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from forebay.block_hash import root_hash
from forebay.core.limits import Limits
from forebay.engine.device_thread import DeviceThread
from forebay.engine.live import EngineParts, LiveEngine
from forebay.engine.outputs import RequestOutput
from forebay.engine.ports import Executor
from forebay.engine.record import NewRequest, RequestRecord
from forebay.engine.requests import Vocabulary
from forebay.exec.null import NullExecutor
from forebay.sampling_params import SamplingParams
from forebay.text import StopDelta, StopMatcher
from forebay.units import Nanos

VOCAB_SIZE = 1000
WAIT_S = 20.0  # only ever reached when a test fails


class LetterText:
    """Every token is one letter: `chr(97 + token % 26)`."""

    def __init__(self, request: NewRequest) -> None:
        params = request.sampling
        self._matcher = StopMatcher(
            params.stop_strings, include_stop=params.include_stop_str_in_output
        )

    @property
    def stop(self) -> str | None:
        return self._matcher.stop

    def push(self, ids: list[int], *, may_stop: bool = True) -> StopDelta:
        return self._matcher.push(letters(ids), may_stop=may_stop)

    def finish(self, *, may_stop: bool = True) -> StopDelta:
        return StopDelta(text=self._matcher.finish())


def letters(ids: list[int]) -> str:
    return "".join(chr(97 + token % 26) for token in ids)


def limits_of(num_blocks: int = 1000, **changes: Any) -> Limits:
    values = {
        "block_size": 4,
        "num_host_blocks": num_blocks,
        "max_num_seqs": 16,
        "max_num_batched_tokens": 256,
        "max_model_len": 512,
    }
    return Limits(num_blocks=num_blocks, **{**values, **changes})


def null_executor(limits: Limits) -> NullExecutor:
    return NullExecutor(
        block_size=limits.block_size,
        max_num_seqs=limits.max_num_seqs,
        num_blocks=limits.num_blocks,
        vocab_size=VOCAB_SIZE,
    )


def engine_parts(
    limits: Limits,
    executor: Executor,
    *,
    eos_token_ids: frozenset[int] = frozenset(),
    new_text: Callable[[NewRequest], Any] = LetterText,
) -> EngineParts:
    return EngineParts(
        limits=limits,
        executor=executor,
        device=DeviceThread(),
        vocabulary=Vocabulary(
            size=VOCAB_SIZE,
            eos_token_ids=eos_token_ids,
            block_size=limits.block_size,
            prefix_root=root_hash("test") if limits.prefix_caching else None,
        ),
        new_text=new_text,
        token_text=lambda token: letters([token]),
    )


@contextmanager
def null_engine(
    limits: Limits | None = None, executor: Executor | None = None, **options: Any
) -> Iterator["Desk"]:
    limits = limits or limits_of()
    engine = LiveEngine(engine_parts(limits, executor or null_executor(limits), **options))
    try:
        yield Desk(engine)
    finally:
        engine.close()


class Desk:
    """Submits requests and waits for what becomes of them."""

    def __init__(self, engine: LiveEngine) -> None:
        self.engine = engine
        self._changed = threading.Condition()
        self._num = 0

    def submit(self, num_prompt: int = 10, **options: Any) -> RequestRecord:
        request = self.request(num_prompt, **options)
        return self.engine.submit(request)

    def request(
        self,
        num_prompt: int = 10,
        *,
        external_id: str | None = None,
        prompt: list[int] | None = None,
        priority: int = 0,
        deadline_ms: float | None = None,
        **params: Any,
    ) -> NewRequest:
        self._num += 1
        now = self.engine.clock.now()
        ids = [(self._num * 31 + at) % VOCAB_SIZE for at in range(num_prompt)]
        return NewRequest(
            external_id=external_id or f"r{self._num}",
            prompt=None,
            prompt_token_ids=prompt if prompt is not None else ids,
            sampling=SamplingParams(**params),
            arrival_ns=now,
            priority=priority,
            deadline_ns=None if deadline_ms is None else Nanos(now + round(deadline_ms * 1e6)),
            on_change=self._on_change,
        )

    def wait(self, *records: RequestRecord) -> list[RequestOutput]:
        """The outputs of `records` once all have ended."""
        self.wait_until(lambda: all(record.finished for record in records))
        return [record.read() for record in records]

    def wait_until(self, holds: Callable[[], bool]) -> None:
        """Returns when `holds`, which is asked again whenever a record has changed."""
        with self._changed:
            assert self._changed.wait_for(holds, timeout=WAIT_S)

    def _on_change(self, _record: RequestRecord) -> None:
        with self._changed:
            self._changed.notify_all()
