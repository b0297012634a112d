import threading
from queue import SimpleQueue

import pytest

from forebay.core.effects import Step
from forebay.engine.device_thread import DeviceThread
from forebay.engine.ports import ExecRequest, StepResult
from forebay.errors import DeviceFault, ModelError
from forebay.sampling_params import SamplingParams
from forebay.units import RequestId, StepSeq

REQUEST = ExecRequest(
    request_id=RequestId(1),
    prompt_token_ids=[1],
    sampling=SamplingParams(),
    seed=0,
    stop_token_ids=frozenset(),
)


class Scribe:
    """An executor that writes down its orders and the thread they came on."""

    def __init__(self) -> None:
        self.orders: list[str] = []
        self.threads: set[str] = set()

    def _note(self, order: str) -> None:
        self.orders.append(order)
        self.threads.add(threading.current_thread().name)

    def add(self, request: ExecRequest) -> None:
        self._note(f"add {request.request_id}")

    def execute(self, step: Step) -> StepResult:
        self._note(f"execute {step.seq}")
        return StepResult(seq=step.seq)

    def close(self) -> None:
        self._note("close")


class Broken(Scribe):
    def add(self, request: ExecRequest) -> None:
        raise ValueError("no such thing")

    def execute(self, step: Step) -> StepResult:
        raise MemoryError("out of memory")


def test_orders_are_carried_out_in_their_order_on_one_thread() -> None:
    device, scribe = DeviceThread(), Scribe()
    answers: SimpleQueue[StepResult | DeviceFault] = SimpleQueue()
    device.add(scribe, REQUEST, answers.put)
    for number in range(1, 4):
        device.execute(scribe, Step(seq=StepSeq(number)), answers.put)
    device.call(scribe.close)
    device.close()
    assert scribe.orders == ["add 1", "execute 1", "execute 2", "execute 3", "close"]
    assert len(scribe.threads) == 1
    assert threading.current_thread().name not in scribe.threads
    found = [answers.get() for _ in range(3)]
    assert [answer.seq for answer in found if isinstance(answer, StepResult)] == [1, 2, 3]


def test_what_a_call_raises_is_raised_at_the_caller() -> None:
    device = DeviceThread()

    def load() -> None:
        raise ModelError("no model")

    with pytest.raises(ModelError, match="no model"):
        device.call(load)
    assert device.call(lambda: device.call(lambda: 3)) == 3  # from the thread itself
    device.close()


def test_faults_of_the_executor_are_posted_and_the_thread_lives_on() -> None:
    device, answers = DeviceThread(), SimpleQueue[StepResult | DeviceFault]()
    device.add(Broken(), REQUEST, answers.put)
    device.execute(Broken(), Step(seq=StepSeq(1)), answers.put)
    adding, executing = answers.get(), answers.get()
    assert isinstance(adding, DeviceFault)
    assert "ValueError: no such thing" in str(adding)
    assert isinstance(executing, DeviceFault)
    assert isinstance(executing.__cause__, MemoryError)
    assert device.call(lambda: "alive") == "alive"
    device.close()
    device.close()
