import gc
import subprocess
import sys
import threading
import weakref
from typing import Any

import numpy as np
import pytest

import forebay
from forebay import LLM, SamplingParams
from forebay.config import EngineConfig
from forebay.core.effects import Step
from forebay.engine.ports import Executor, StepResult
from forebay.errors import BadRequest, CapacityError, ConfigError, DeviceFault, NeverFits
from tests.support.doors import byte_tokenizer, start_null

pytestmark = pytest.mark.usefixtures("no_model")

SHORT = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)


def test_outputs_come_in_the_order_of_the_prompts() -> None:
    with LLM(kv_tokens=64, max_model_len=64) as llm:
        outputs = llm.generate(["one", "two", "three"], SHORT)
        assert [output.prompt for output in outputs] == ["one", "two", "three"]
        assert [output.prompt_token_ids for output in outputs] == [
            llm.get_tokenizer().encode(text) for text in ("one", "two", "three")
        ]
        assert all(output.finished for output in outputs)
        assert [len(output.outputs[0].token_ids) for output in outputs] == [6, 6, 6]
        assert len({output.request_id for output in outputs}) == 3


@pytest.mark.parametrize(
    "prompts",
    [
        *("ab", ["ab"], {"prompt": "ab"}, [{"prompt": "ab"}], (65, 66), [[65, 66]]),
        {"prompt_token_ids": [65, 66]},
        [{"prompt_token_ids": [65, 66], "prompt": "ab"}],
        [{"prompt_token_ids": [np.int64(65), np.int32(66)]}],
    ],
)
def test_a_prompt_has_many_shapes(prompts: Any) -> None:
    with LLM(max_model_len=64) as llm:
        [output] = llm.generate(prompts, SHORT)
        assert len(output.prompt_token_ids) == 2


@pytest.mark.parametrize(
    ("prompts", "complaint"),
    [
        ("", "empty"),
        (["fine", ""], r"prompts\[1\] is empty"),
        ([[]], "empty"),
        ({}, "without prompt"),
        ([{"text": "x"}], "without prompt"),
        (3, "prompts is a int"),
        ([["a"]], "'a', which is no token id"),
        ([[True]], "no token id"),
        ([None], "NoneType"),
        ([{"prompt_token_ids": "ab"}], "str"),
        ([{"prompt": 3}], "int"),
        ("\ud800", "not valid Unicode"),
        ([[5, 100_000]], "outside the vocabulary"),
    ],
)
def test_a_bad_prompt_is_refused_with_what_is_wrong(prompts: Any, complaint: str) -> None:
    with LLM(max_model_len=64) as llm, pytest.raises(BadRequest, match=complaint):
        llm.generate(prompts, SHORT)


def test_one_bad_request_stops_the_batch_before_anything_runs() -> None:
    with LLM(kv_tokens=64, max_model_len=64) as llm:
        with pytest.raises(NeverFits, match="max_model_len 64"):
            llm.generate(["fine", "x" * 200], SHORT)
        assert llm.stats().tally.requests_arrived == 0
        assert len(llm.generate("fine", SHORT)) == 1


def test_parameters_and_priorities_may_differ_by_prompt() -> None:
    with LLM(max_model_len=64, scheduling_policy="priority") as llm:
        params = [SamplingParams(max_tokens=count, ignore_eos=True) for count in (1, 2, 3)]
        outputs = llm.generate(["a", "b", "c"], params, priority=[2, 1, 0])
        assert [len(output.outputs[0].token_ids) for output in outputs] == [1, 2, 3]
        with pytest.raises(BadRequest, match="sampling_params has 2 entries for 3 prompts"):
            llm.generate(["a", "b", "c"], params[:2])
        with pytest.raises(BadRequest, match="priority has 1 entries for 2"):
            llm.generate(["a", "b"], SHORT, priority=[1])
        with pytest.raises(BadRequest, match="priority is 'high'"):
            llm.generate(["a"], SHORT, priority=["high"])  # type: ignore[list-item]
        with pytest.raises(BadRequest, match="no SamplingParams"):
            llm.generate(["a"], {"max_tokens": 3})  # type: ignore[arg-type]


def test_without_parameters_the_defaults_hold() -> None:
    with LLM(max_model_len=64) as llm:
        [output] = llm.generate("a")
        assert 1 <= len(output.outputs[0].token_ids) <= 16


def test_nothing_comes_of_no_prompts() -> None:
    with LLM(max_model_len=64) as llm:
        assert llm.generate([]) == []


def test_a_chat_goes_through_the_template() -> None:
    chat = [{"role": "user", "content": "hi"}]
    with LLM(max_model_len=128) as llm:
        [output] = llm.chat(chat, SHORT)
        assert output.prompt == "<|start|>user:hi<|end|><|start|>assistant:"
        both = llm.chat([chat, chat], SHORT)
        assert [one.prompt for one in both] == [output.prompt] * 2
        [bare] = llm.chat(chat, SHORT, add_generation_prompt=False)
        assert bare.prompt == "<|start|>user:hi<|end|>"
        with pytest.raises(BadRequest, match="messages is empty"):
            llm.chat([[]], SHORT)


@pytest.mark.parametrize("mode", ["recompute", "swap", "auto"])
def test_a_small_pool_changes_nothing_but_the_metrics(mode: str) -> None:
    prompts = [f"prompt number {number}" for number in range(8)]
    params = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
    with LLM(max_model_len=80) as llm:
        free = llm.generate(prompts, params)
    with LLM(
        max_model_len=80, kv_tokens=160, preemption_mode=mode, expected_output_share=0.0
    ) as llm:
        tight = llm.generate(prompts, params)
    assert [one.outputs[0].token_ids for one in tight] == [one.outputs[0].token_ids for one in free]
    assert sum(one.metrics.num_preemptions for one in free) == 0
    assert sum(one.metrics.num_preemptions for one in tight) > 0


class Slow:
    """An executor that takes a while for each step."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self.add, self.close = executor.add, executor.close
        self.num_steps = 0
        self.at_step: Any = lambda number: None

    def execute(self, step: Step) -> StepResult:
        self.num_steps += 1
        self.at_step(self.num_steps)
        return self._executor.execute(step)


def slow_llm(**settings: Any) -> tuple[LLM, Slow]:
    started = start_null(EngineConfig(**{"max_model_len": 512, **settings}), wrap=Slow)
    llm = LLM.from_started(started)
    executor = started.engine._parts.executor
    assert isinstance(executor, Slow)
    return llm, executor


def test_an_interrupt_aborts_all_requests_and_leaves_the_llm_usable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    llm, _ = slow_llm()
    waits: list[str] = []
    wait = threading.Event.wait

    def interrupted(self: threading.Event, timeout: float | None = None) -> bool:
        if threading.current_thread() is threading.main_thread() and not waits:
            waits.append("interrupt")
            raise KeyboardInterrupt
        return wait(self, timeout)

    monkeypatch.setattr(threading.Event, "wait", interrupted)
    with llm:
        with pytest.raises(KeyboardInterrupt):
            llm.generate(["a", "b"], SamplingParams(max_tokens=400, ignore_eos=True))
        assert llm.stats().gauges.num_running == 0
        assert llm.stats().tally.requests_ended == 2
        assert len(llm.generate("c", SHORT)[0].outputs[0].token_ids) == 6


def test_a_deadline_ends_a_call_in_time() -> None:
    llm, executor = slow_llm()
    executor.at_step = lambda number: threading.Event().wait(0.02)
    with llm:
        [output] = llm.generate(
            "a", SamplingParams(max_tokens=400, ignore_eos=True), deadline_ms=30
        )
        assert output.outputs[0].finish_reason == "deadline"
        for wrong in (0, -1, "soon", True):
            with pytest.raises(BadRequest, match="deadline_ms"):
                llm.generate("a", SHORT, deadline_ms=wrong)  # type: ignore[arg-type]


def test_a_dead_engine_is_reported_by_this_call_and_the_next(
    caplog: pytest.LogCaptureFixture,
) -> None:
    llm, executor = slow_llm()

    def fail(number: int) -> None:
        if number == 2:
            raise RuntimeError("bus error")

    executor.at_step = fail
    with llm:
        with pytest.raises(DeviceFault, match="bus error"):
            llm.generate("a", SHORT)
        with pytest.raises(DeviceFault, match="dead"):
            llm.generate("a", SHORT)
    assert "bus error" in caplog.text


def test_several_threads_may_share_an_llm() -> None:
    with LLM(max_model_len=64, kv_tokens=128) as llm:
        lengths: list[int] = []

        def client() -> None:
            for output in llm.generate(["a", "b", "c"], SHORT):
                lengths.append(len(output.outputs[0].token_ids))

        threads = [threading.Thread(target=client) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert lengths == [6] * 9


def test_an_llm_that_is_dropped_ends_its_threads() -> None:
    llm = LLM(max_model_len=64)
    engine, alive = llm._engine, weakref.ref(llm)
    del llm
    gc.collect()
    assert alive() is None
    assert not engine._thread.is_alive()


def test_settings_are_checked_when_an_llm_is_built() -> None:
    with pytest.raises(ConfigError, match="did you mean max_model_len"):
        LLM(max_model_length=3)
    with pytest.raises(CapacityError, match="largest max_model_len that fits is 33"):
        LLM(kv_tokens=32, max_model_len=64)
    with pytest.raises(ConfigError, match="block_size"):
        LLM.from_config(EngineConfig(block_size=0))


def test_the_report_tells_what_fits() -> None:
    with LLM(kv_tokens=64, max_model_len=64) as llm:
        assert "64 tokens, or 1.0 requests of max_model_len 64" in str(llm.startup)
        assert llm.config.kv_tokens == 64


def test_logprobs_name_their_tokens() -> None:
    with LLM(max_model_len=64) as llm:
        params = SamplingParams(max_tokens=2, logprobs=1, ignore_eos=True)
        one = llm.generate("a", params)[0].outputs[0]
        assert one.logprobs is not None
        first = one.logprobs[0][one.token_ids[0]]
        assert first.decoded_token == byte_tokenizer().token_text(one.token_ids[0])
        assert one.cumulative_logprob == 0.0


def test_public_names_are_there_on_demand() -> None:
    for name in forebay.__all__:
        assert getattr(forebay, name) is not None
    assert set(forebay.__all__) <= set(dir(forebay))
    with pytest.raises(AttributeError, match="no attribute 'LLMs'"):
        _ = forebay.LLMs


def test_import_starts_nothing_and_loads_no_torch() -> None:
    code = (
        "import sys, threading, forebay; from forebay import LLM, AsyncLLM, SamplingParams\n"
        "import forebay.cli.main\n"
        "heavy = {'torch', 'numba', 'tokenizers', 'jinja2', 'gguf', 'numpy'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "assert threading.active_count() == 1\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
