"""What a caller may do to an `LLM` by mistake: it answers, and goes on serving the others."""

import gc
import os
import threading
import time
from typing import Any

import pytest

from forebay import LLM, SamplingParams
from forebay.config import EngineConfig
from forebay.core.effects import Step
from forebay.engine.ports import Executor, StepResult
from forebay.engine.record import NewRequest
from forebay.errors import BadRequest, DeviceFault
from tests.support.doors import byte_tokenizer, start_null

pytestmark = pytest.mark.usefixtures("no_model")

SHORT = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
LONG = SamplingParams(temperature=0, max_tokens=400, ignore_eos=True)


def names() -> list[str]:
    return [thread.name for thread in threading.enumerate() if "forebay" in thread.name]


def wait_until(holds: Any) -> None:
    for _ in range(1000):
        if holds():
            return
        time.sleep(0.005)
    raise AssertionError("it never came about")


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_stop_tokens_that_leave_no_token_are_refused(temperature: float) -> None:
    everything = range(byte_tokenizer().vocab_size)
    with LLM(max_model_len=64) as llm:
        params = SamplingParams(temperature=temperature, min_tokens=2, stop_token_ids=everything)
        with pytest.raises(BadRequest, match="every token ends the sequence, but min_tokens 2"):
            llm.generate("a", params)
        but_one = SamplingParams(min_tokens=2, stop_token_ids=everything[1:], ignore_eos=True)
        assert len(llm.generate("a", but_one)[0].outputs[0].token_ids) >= 2
        [output] = llm.generate("a", SamplingParams(stop_token_ids=everything))
        assert len(output.outputs[0].token_ids) == 1


@pytest.mark.parametrize(
    ("messages", "complaint"),
    [
        ({"role": "user", "content": "hi"}, "messages is a dict"),
        (None, "messages is a NoneType"),
        ("hi", "messages is a str"),
        ((one for one in [{"role": "user", "content": "hi"}]), "messages is a generator"),
        ([3], "messages should be a list, not int"),
    ],
)
def test_what_is_no_conversation_is_said(messages: Any, complaint: str) -> None:
    with LLM(max_model_len=64) as llm, pytest.raises(BadRequest, match=complaint):
        llm.chat(messages, SHORT)


def test_an_empty_list_is_not_a_default() -> None:
    with LLM(max_model_len=64) as llm:
        with pytest.raises(BadRequest, match="sampling_params has 0 entries for 2 prompts"):
            llm.generate(["a", "b"], [])
        with pytest.raises(BadRequest, match="priority has 0 entries for 2 prompts"):
            llm.generate(["a", "b"], SHORT, priority=[])


class Exits:
    """An executor that raises what no thread survives."""

    def __init__(self, executor: Executor) -> None:
        self.add, self.close = executor.add, executor.close

    def execute(self, step: Step) -> StepResult:
        raise SystemExit(3)


def test_an_executor_that_exits_hangs_nobody(caplog: pytest.LogCaptureFixture) -> None:
    llm = LLM.from_started(start_null(EngineConfig(max_model_len=64), wrap=Exits))
    with llm, pytest.raises(DeviceFault, match="SystemExit: 3"):
        llm.generate(["a", "b"], SHORT)
    assert "SystemExit" in caplog.text


def test_a_dead_engine_gives_its_device_back_at_once(caplog: pytest.LogCaptureFixture) -> None:
    llm = LLM.from_started(start_null(EngineConfig(max_model_len=64), wrap=Exits))
    with pytest.raises(DeviceFault):
        llm.generate("a", SHORT)
    wait_until(lambda: not names())
    llm.close()
    assert "SystemExit" in caplog.text


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_is_told_and_can_end() -> None:
    with LLM(max_model_len=64) as llm:
        child = os.fork()
        if child == 0:
            os._exit(count_of_faults(llm))
        status: list[int] = []

        def has_ended() -> bool:
            found, code = os.waitpid(child, os.WNOHANG)
            status.extend([code] * bool(found))
            return bool(status)

        try:
            wait_until(has_ended)
        finally:
            if not status:
                os.kill(child, 9)
                os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status[0]) == 3
        assert len(llm.generate("a", SHORT)) == 1


def count_of_faults(llm: LLM) -> int:
    """How many of three calls are refused in a forked child, which closes the engine at last."""
    found = 0
    for call in (lambda: llm.generate("a", SHORT), llm.stats, lambda: llm._engine.abort("a")):
        try:
            call()
        except DeviceFault as fault:
            found += "forked" in str(fault)
    llm.close()
    return found


def test_an_llm_collected_on_the_engines_thread_ends_both_threads() -> None:
    box = [LLM(max_model_len=64)]
    engine = box[0]._engine
    engine._inbox.put(Collects(box))  # type: ignore[arg-type]  # only its type is asked for
    wait_until(lambda: not names())


class Collects:
    """A letter that drops what is in a box when the engine's thread looks at it."""

    def __init__(self, box: list[LLM]) -> None:
        self._box = box

    @property
    def __class__(self) -> Any:
        self._box.clear()
        gc.collect()
        return Collects


def test_an_llm_collected_on_the_device_thread_while_a_step_is_due() -> None:
    box: list[Any] = []
    held = threading.Event()

    class Holds:
        def __init__(self, executor: Executor) -> None:
            self._executor = executor
            self.add, self.close = executor.add, executor.close

        def execute(self, step: Step) -> StepResult:
            held.wait()
            box.clear()
            gc.collect()
            return self._executor.execute(step)

    llm = LLM.from_started(start_null(EngineConfig(max_model_len=512), wrap=Holds))
    request = NewRequest(
        external_id="left",
        prompt=None,
        prompt_token_ids=[1, 2],
        sampling=LONG,
        arrival_ns=llm._engine.clock.now(),
    )
    record = llm._engine.submit(request)
    box.append(llm)
    del llm
    held.set()
    wait_until(lambda: not names())
    assert record.finished
