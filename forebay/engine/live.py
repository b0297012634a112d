"""The live engine: an inbox, the machine, and a device thread beside it.

One thread owns the machine. Whatever happens outside becomes a letter in its inbox: a request, an
abort, a step's result, a fault. Each turn takes in all letters that are there, then plans. Readers
never wait for this thread, and it never waits for them.
"""

import dataclasses
import itertools
import logging
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import assert_never

from forebay.core.effects import Capped, Effect, Ended, Refuse, Step
from forebay.core.events import Abort, Event, FinishReason, StepDone
from forebay.core.gauges import Gauges, Tally
from forebay.core.limits import Limits
from forebay.core.scheduler import Scheduler
from forebay.engine.clock import MonotonicClock
from forebay.engine.device_thread import DeviceThread
from forebay.engine.ports import Executor, StepResult
from forebay.engine.record import NewRequest, RequestRecord, SequenceText
from forebay.engine.requests import Prepared, Vocabulary, check_fits, prepare, refused
from forebay.engine.turn import turn
from forebay.errors import BadRequest, DeviceFault, ForebayError, InvariantError
from forebay.units import NANOS_PER_S, Nanos, RequestId, branch_of, request_of

_LOG = logging.getLogger("forebay")


@dataclass(slots=True, frozen=True, kw_only=True)
class EngineParts:
    """What an engine is built from. `device` is the thread that built `executor`."""

    limits: Limits
    executor: Executor
    device: DeviceThread
    vocabulary: Vocabulary
    new_text: Callable[[NewRequest], SequenceText]
    token_text: Callable[[int], str | None]
    seed: int = 0


@dataclass(slots=True, frozen=True)
class EngineStats:
    """The machine's gauges and counters at one moment."""

    gauges: Gauges
    tally: Tally


@dataclass(slots=True, frozen=True)
class _Submit:
    prepared: Prepared
    record: RequestRecord


@dataclass(slots=True, frozen=True)
class _Cancel:
    request_id: RequestId
    reason: FinishReason


@dataclass(slots=True, frozen=True)
class _AskStats:
    answer: Future[EngineStats]


class _Close:
    """No further letter will matter."""


_Letter = _Submit | _Cancel | _AskStats | _Close | StepResult | DeviceFault


class LiveEngine:
    """Runs requests until closed. Every method but `close` returns at once; any thread may call.

    In a process forked from its own the engine does not run: it refuses requests there.
    """

    def __init__(self, parts: EngineParts) -> None:
        self._parts = parts
        self._core = Scheduler(parts.limits)
        self.clock = MonotonicClock()
        self._inbox: SimpleQueue[_Letter] = SimpleQueue()
        # Reentrant, for a collected engine is closed wherever the collector happens to run.
        self._lock = threading.RLock()
        self._process = os.getpid()
        self._numbers = itertools.count(1)
        self._open_ids: dict[str, RequestId] = {}
        self._fault: ForebayError | None = None
        self._is_closing = False
        # From here on: the engine's thread only.
        self._records: dict[RequestId, RequestRecord] = {}
        self._changed: dict[RequestRecord, None] = {}
        self._last_stats = self._stats_now()
        self._thread = threading.Thread(target=self._run, name="forebay-engine", daemon=True)
        self._thread.start()

    @property
    def fault(self) -> ForebayError | None:
        """Why the engine died; None while it lives, and after an orderly close."""
        return self._fault

    def check(self, request: NewRequest) -> None:
        """Raises `RequestRefused` if the engine would never take `request`; changes nothing."""
        check_fits(request, self._parts.vocabulary, self._parts.limits)

    def submit(self, request: NewRequest) -> RequestRecord:
        """Queues a request. Its record fills as tokens come.

        Raises: RequestRefused for one that can never run or whose id is in use; what killed the
        engine, if it is dead.
        """
        self._raise_if_forked()
        self.check(request)
        number = RequestId(next(self._numbers))
        prepared = prepare(request, number, self._parts.vocabulary, self._parts.seed)
        parts = self._parts
        record = RequestRecord(request, new_text=parts.new_text, token_text=parts.token_text)
        with self._lock:
            self._raise_if_down()
            if request.external_id in self._open_ids:
                raise BadRequest(f"request id {request.external_id!r} is in use: choose another")
            self._open_ids[request.external_id] = number
            self._inbox.put(_Submit(prepared, record))
        return record

    def abort(self, external_id: str, reason: FinishReason = FinishReason.ABORT) -> None:
        """Ends a request, whatever its state. Unknown and ended ones are ignored."""
        self._raise_if_forked()
        with self._lock:
            if (number := self._open_ids.get(external_id)) is not None:
                self._inbox.put(_Cancel(number, reason))

    def stats(self) -> EngineStats:
        """Gauges and counters between two steps; the last known ones once the engine is down."""
        self._raise_if_forked()
        ask = _AskStats(Future())
        with self._lock:
            if self._fault is not None or self._is_closing or not self._thread.is_alive():
                return self._last_stats
            self._inbox.put(ask)
        return ask.answer.result()

    def close(self) -> None:
        """Aborts what is open, waits for steps in flight, frees the device. Idempotent.

        From one of its own threads, where the collector may run, it asks for that and returns.
        """
        if self._is_forked:
            return
        with self._lock:
            self._is_closing = True
            self._inbox.put(_Close())
        if threading.current_thread() is not self._thread and not self._parts.device.is_current:
            self._thread.join()

    @property
    def _is_forked(self) -> bool:
        """Whether this is a child process, which has neither of the threads, nor free locks."""
        return os.getpid() != self._process

    def _raise_if_forked(self) -> None:
        if self._is_forked:
            raise DeviceFault(
                "this process was forked from the one that runs the engine, and threads do not "
                "come along: build an engine in the new process"
            )

    def _raise_if_down(self) -> None:
        if self._fault is not None:
            raise type(self._fault)(f"the engine is dead: {self._fault}") from self._fault
        if self._is_closing:
            raise BadRequest("the engine is closed")

    # --- the engine's thread ------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not (self._is_closing and self._is_drained()):
                self._turn(self._letters())
            self._settle(None)
        except BaseException as fault:  # a bug must not leave callers waiting for ever
            self._settle(_as_fault(fault))
        self._free_device()

    def _is_drained(self) -> bool:
        return not self._records and self._core.num_in_flight == 0

    def _letters(self) -> list[_Letter]:
        """All letters there are; waits for the first, or until a deadline is due."""
        wakeup = self._core.next_wakeup()
        timeout = None
        if wakeup is not None:
            timeout = max(0, wakeup - self.clock.now()) / NANOS_PER_S
        letters: list[_Letter] = []
        try:
            letters.append(self._inbox.get(timeout=timeout))
            while True:
                letters.append(self._inbox.get_nowait())
        except Empty:
            return letters

    def _turn(self, letters: list[_Letter]) -> None:
        now = self.clock.now()
        turn(self._core, self._events(letters, now), now, self)
        changed, self._changed = self._changed, {}
        for record in changed:
            record.request.on_change(record)
        self._check_progress()

    def _events(self, letters: list[_Letter], now: Nanos) -> Iterator[Event]:
        for letter in letters:
            match letter:
                case StepResult():
                    yield self._step_done(letter, now)
                case _Submit(prepared, record):
                    number = prepared.arrive.request_id
                    self._records[number] = record
                    yield prepared.arrive
                    if number in self._records:  # not refused
                        parts = self._parts
                        parts.device.add(parts.executor, prepared.for_executor, self._inbox.put)
                case _Cancel(number, reason):
                    yield Abort(request_id=number, reason=reason)
                case _AskStats(answer):
                    answer.set_result(self._stats_now())
                case DeviceFault():
                    raise letter
                case _Close():
                    yield from [Abort(request_id=number) for number in self._records]
                case _:
                    assert_never(letter)

    def _step_done(self, result: StepResult, now: Nanos) -> StepDone:
        """Hands the step's tokens to their records, which look for stop strings."""
        stopped = set(result.stops)
        stops = list(result.stops)
        for seq, token in zip(result.seq_ids, result.token_ids, strict=True):
            record = self._records.get(request_of(seq))
            if record is None:  # it ended while this step was in flight
                continue
            self._changed[record] = None
            logprobs = result.logprobs.get(seq)
            if seq in stopped:
                record.take_stop_token(branch_of(seq), token, logprobs, now)
            elif record.take(branch_of(seq), token, logprobs, now):
                stops.append(seq)
        return StepDone(seq=result.seq, stops=tuple(stops), filled=tuple(result.filled))

    def tell(self, effect: Effect, now: Nanos) -> None:
        """Passes on what became of a request (see `turn`)."""
        match effect:
            case Ended(seq_id, reason, num_output, report):
                record = self._records[request_of(seq_id)]
                self._changed[record] = None
                record.end(branch_of(seq_id), reason, num_output, report, now)
                if report is not None:
                    self._forget(request_of(seq_id))
            case Refuse(request_id):
                record = self._records[request_id]
                self._changed[record] = None
                record.fail(refused(effect), now)
                self._forget(request_id)
            case Capped(request_id, _, message):
                self._records[request_id].cap(message)
            case _:
                assert_never(effect)

    def perform(self, step: Step) -> None:
        """Gives a step to the device thread (see `turn`)."""
        self._parts.device.execute(self._parts.executor, step, self._inbox.put)

    def _check_progress(self) -> None:
        core = self._core
        if core.has_work and core.num_in_flight == 0 and core.next_wakeup() is None:
            raise InvariantError(
                "unfinished requests, but nothing planned and nothing in flight: "
                f"{core.gauges()}; this is a bug in forebay, please report it"
            )

    def _forget(self, number: RequestId) -> None:
        record = self._records.pop(number)
        with self._lock:
            self._open_ids.pop(record.request.external_id, None)

    def _stats_now(self) -> EngineStats:
        return EngineStats(self._core.gauges(), dataclasses.replace(self._core.tally))

    def _settle(self, fault: ForebayError | None) -> None:
        """The last act of the thread: everyone who still waits for an answer gets one."""
        with self._lock:
            self._fault = fault
            self._is_closing = self._is_closing or fault is None
            self._last_stats = self._stats_now()
            self._open_ids.clear()
        if fault is not None:
            _LOG.error("the engine died: %s", fault, exc_info=fault)
        error = fault or DeviceFault("the engine was closed before this request ran")
        left = list(self._records.values())
        while not self._inbox.empty():
            letter = self._inbox.get()
            if isinstance(letter, _Submit):
                left.append(letter.record)
            elif isinstance(letter, _AskStats):
                letter.answer.set_result(self._last_stats)
        now = self.clock.now()
        for record in {**self._changed, **dict.fromkeys(left)}:
            if not record.finished:
                record.fail(error, now)
            record.request.on_change(record)

    def _free_device(self) -> None:
        try:
            self._parts.device.call(self._parts.executor.close)
        except Exception:
            # A device that has failed may fail at closing too; the thread ends all the same.
            _LOG.warning("closing the executor failed", exc_info=True)
        self._parts.device.close()


def _as_fault(fault: BaseException) -> ForebayError:
    if isinstance(fault, ForebayError):
        return fault
    wrapped = InvariantError(f"{type(fault).__name__}: {fault}")
    wrapped.__cause__ = fault
    return wrapped
