"""The thread that owns the device: whatever touches a tensor runs there, one thing at a time.

The executor is built, used and closed on this one thread. Orders are carried out in the order in
which they are given, which is all that the executor's promises need.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import TypeVar

from forebay.core.effects import Step
from forebay.engine.ports import ExecRequest, Executor, StepResult
from forebay.errors import DeviceFault, ForebayError

T = TypeVar("T")


class DeviceThread:
    """Carries out orders in their order, and answers each step through `post`."""

    def __init__(self) -> None:
        self._orders: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="forebay-device", daemon=True)
        self._thread.start()

    def call(self, action: Callable[[], T]) -> T:
        """Runs `action` on the device thread, after all earlier orders; returns or raises."""
        if self.is_current:
            return action()
        answer: Future[T] = Future()

        def order() -> None:
            try:
                answer.set_result(action())
            except BaseException as fault:  # whatever it is, it belongs to the caller
                answer.set_exception(fault)

        self._orders.put(order)
        return answer.result()

    def add(
        self, executor: Executor, request: ExecRequest, post: Callable[[DeviceFault], None]
    ) -> None:
        """Hands a request's tokens to the executor; only a fault is posted."""

        def order() -> None:
            try:
                executor.add(request)
            except BaseException as fault:  # also one that would end this thread: someone waits
                post(_device_fault(fault))

        self._orders.put(order)

    def execute(
        self, executor: Executor, step: Step, post: Callable[[StepResult | DeviceFault], None]
    ) -> None:
        """Starts a step; its result, or the fault that ended it, is posted from this thread."""

        def order() -> None:
            try:
                result = executor.execute(step)
            except BaseException as fault:  # also one that would end this thread: someone waits
                post(_device_fault(fault))
            else:
                post(result)

        self._orders.put(order)

    @property
    def is_current(self) -> bool:
        """Whether the caller is on this thread."""
        return threading.current_thread() is self._thread

    def close(self) -> None:
        """Waits for the orders given so far, then ends the thread. Idempotent."""
        if not self._thread.is_alive():
            return
        self._orders.put(None)
        if not self.is_current:
            self._thread.join()

    def _run(self) -> None:
        while (order := self._orders.get()) is not None:
            order()
            del order  # it holds a step or a result, which must not outlive it while idle


def _device_fault(fault: BaseException) -> DeviceFault:
    if isinstance(fault, DeviceFault):
        return fault
    kind = "" if isinstance(fault, ForebayError) else f"{type(fault).__name__}: "
    wrapped = DeviceFault(f"the executor failed: {kind}{fault}")
    wrapped.__cause__ = fault
    return wrapped
