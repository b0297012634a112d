import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

import pytest

from forebay import AsyncLLM, RequestOutput, SamplingParams
from forebay.config import EngineConfig
from forebay.core.effects import Step
from forebay.engine.ports import Executor, StepResult
from forebay.errors import BadRequest, DeviceFault, NeverFits
from tests.support.doors import start_null

pytestmark = pytest.mark.usefixtures("no_model")

WAIT_S = 20.0
SHORT = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
LONG = SamplingParams(temperature=0, max_tokens=400, ignore_eos=True)


class Gate:
    """An executor whose steps wait until they are let through."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self.add, self.close = executor.add, executor.close
        self.num_let = threading.Semaphore(0)
        self.fault: Exception | None = None

    def execute(self, step: Step) -> StepResult:
        assert self.num_let.acquire(timeout=WAIT_S)
        if self.fault is not None:
            raise self.fault
        return self._executor.execute(step)


@asynccontextmanager
async def gated(**settings: Any) -> AsyncIterator[tuple[AsyncLLM, Gate]]:
    started = start_null(EngineConfig(**{"max_model_len": 512, **settings}), wrap=Gate)
    gate = started.engine._parts.executor
    assert isinstance(gate, Gate)
    async with AsyncLLM.from_started(started) as llm:
        try:
            yield llm, gate
        finally:
            gate.num_let.release(10_000)


async def collect(stream: Any) -> list[RequestOutput]:
    return [output async for output in stream]


def run(story: Any) -> None:
    asyncio.run(asyncio.wait_for(story, WAIT_S))


def test_a_stream_grows_to_the_whole_output() -> None:
    async def story() -> None:
        async with AsyncLLM(max_model_len=64) as llm:
            outputs = await collect(llm.generate("hello", SHORT, request_id="mine"))
            lengths = [len(output.outputs[0].token_ids) for output in outputs]
            assert lengths == sorted(lengths)
            assert lengths[-1] == 12
            assert [output.finished for output in outputs] == [False] * (len(outputs) - 1) + [True]
            assert {output.request_id for output in outputs} == {"mine"}

    run(story())


def test_deltas_joined_are_the_whole_and_final_is_one() -> None:
    async def story() -> None:
        async with AsyncLLM(max_model_len=64) as llm:
            [whole] = await collect(llm.generate("hello", SHORT, output_kind="final"))
        async with AsyncLLM(max_model_len=64) as llm:
            deltas = await collect(llm.generate("hello", SHORT, output_kind="delta"))
            tokens = [token for delta in deltas for token in delta.outputs[0].token_ids]
            assert tokens == whole.outputs[0].token_ids
            assert "".join(delta.outputs[0].text for delta in deltas) == whole.outputs[0].text
            with pytest.raises(BadRequest, match="output_kind"):
                await collect(llm.generate("x", SHORT, output_kind="all"))  # type: ignore[arg-type]

    run(story())


def test_a_slow_reader_gets_fewer_outputs_and_loses_nothing() -> None:
    async def story() -> None:
        async with gated() as (llm, gate):
            stream = llm.generate("hello", SHORT, output_kind="delta")
            gate.num_let.release(1)
            first = await anext(stream)
            assert len(first.outputs[0].token_ids) == 1
            gate.num_let.release(50)
            while (await llm.stats()).tally.requests_ended == 0:
                await asyncio.sleep(0)
            [rest] = await collect(stream)
            assert len(rest.outputs[0].token_ids) == 11
            assert rest.finished

    run(story())


def test_many_requests_share_a_pool_that_is_too_small() -> None:
    async def story() -> None:
        settings: dict[str, Any] = {"max_model_len": 64, "expected_output_share": 0.0}
        async with AsyncLLM(kv_tokens=128, **settings) as llm:
            streams = [collect(llm.generate(f"prompt {n}", SHORT)) for n in range(30)]
            outputs = [found[-1] for found in await asyncio.gather(*streams)]
            assert {len(output.outputs[0].token_ids) for output in outputs} == {12}
            assert (await llm.stats()).gauges.blocks_active == 0

    run(story())


def test_abort_ends_a_stream_with_what_it_has() -> None:
    async def story() -> None:
        async with gated() as (llm, gate):
            stream = llm.generate("hello", LONG, request_id="a")
            gate.num_let.release(3)
            while len((await anext(stream)).outputs[0].token_ids) < 3:
                pass
            await llm.abort("a")
            await llm.abort("unknown")
            [last] = await collect(stream)
            assert (last.finished, last.outputs[0].finish_reason) == (True, "abort")
            assert len(last.outputs[0].token_ids) == 3

    run(story())


def test_leaving_a_stream_aborts_the_request() -> None:
    async def story() -> None:
        async with gated() as (llm, gate):
            gate.num_let.release(1)
            async with aclosing(llm.generate("hello", LONG)) as stream:
                async for _ in stream:
                    break
            gate.num_let.release(1)
            while (await llm.stats()).tally.requests_ended == 0:
                await asyncio.sleep(0)
            assert (await llm.stats()).gauges.num_running == 0

    run(story())


def test_cancelling_the_reader_aborts_the_request() -> None:
    async def story() -> None:
        async with gated() as (llm, gate):
            task = asyncio.create_task(collect(llm.generate("hello", LONG)))
            while (await llm.stats()).tally.requests_arrived == 0:
                await asyncio.sleep(0)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            while (await llm.stats()).tally.requests_ended == 0:
                await asyncio.sleep(0)
            gate.num_let.release(5)

    run(story())


def test_what_cannot_run_is_refused() -> None:
    async def story() -> None:
        async with gated(kv_tokens=512) as (llm, gate):
            with pytest.raises(NeverFits, match="max_model_len"):
                await collect(llm.generate("x" * 600, SHORT))
            with pytest.raises(BadRequest, match="empty"):
                await collect(llm.generate("", SHORT))
            stream = llm.generate("a", LONG, request_id="same")
            gate.num_let.release(1)
            await anext(stream)
            with pytest.raises(BadRequest, match="in use"):
                await collect(llm.generate("b", SHORT, request_id="same"))
            await stream.aclose()

    run(story())


def test_names_of_requests_do_not_collide_with_made_up_ones() -> None:
    async def story() -> None:
        async with gated() as (llm, gate):
            gate.num_let.release(10_000)
            streams = [llm.generate("a", SHORT, request_id=f"async-{n}") for n in range(3)]
            streams += [llm.generate("a", SHORT) for _ in range(3)]
            found = await asyncio.gather(*map(collect, streams))
            assert len({outputs[-1].request_id for outputs in found}) == 6
            for wrong in ("", 5, ["a"]):
                with pytest.raises(BadRequest, match="request_id"):
                    await collect(llm.generate("a", SHORT, request_id=wrong))  # type: ignore[arg-type]

    run(story())


def test_a_long_text_is_tokenised_beside_the_event_loop() -> None:
    async def story() -> None:
        async with AsyncLLM(max_model_len=64) as llm:
            with pytest.raises(NeverFits):
                await collect(llm.generate("long " * 4000, SHORT))

    run(story())


def test_a_deadline_ends_a_stream() -> None:
    async def story() -> None:
        async with gated() as (llm, _):
            [last] = await collect(llm.generate("hello", LONG, deadline_ms=20))
            assert last.outputs[0].finish_reason == "deadline"

    run(story())


def test_a_fault_ends_all_streams_with_the_reason_and_the_engine_is_dead(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def story() -> None:
        async with gated() as (llm, gate):
            gate.fault = MemoryError("out of memory")
            tasks = [asyncio.create_task(collect(llm.generate("a", LONG))) for _ in range(3)]
            while (await llm.stats()).tally.requests_arrived < 3:
                await asyncio.sleep(0)
            assert not llm.errored
            gate.num_let.release(10)
            for found in await asyncio.gather(*tasks):
                assert found[-1].outputs[0].finish_reason == "error"
                assert "out of memory" in (found[-1].error or "")
            assert llm.errored
            assert isinstance(llm.dead_error, DeviceFault)
            with pytest.raises(DeviceFault, match="dead"):
                await collect(llm.generate("a", SHORT))

    run(story())
    assert "out of memory" in caplog.text


def test_priorities_are_passed_on() -> None:
    async def story() -> None:
        async with gated(max_num_seqs=1, scheduling_policy="priority") as (llm, gate):
            ended: list[str] = []

            async def client(name: str, priority: int) -> None:
                await collect(llm.generate("a", SHORT, request_id=name, priority=priority))
                ended.append(name)

            tasks = [asyncio.create_task(client("late", 5))]
            tasks.append(asyncio.create_task(client("urgent", 0)))
            while (await llm.stats()).tally.requests_arrived < 2:
                await asyncio.sleep(0)
            gate.num_let.release(100)
            await asyncio.gather(*tasks)
            assert ended == ["urgent", "late"]

    run(story())


def test_a_chat_streams_too() -> None:
    async def story() -> None:
        async with AsyncLLM(max_model_len=128) as llm:
            chat = [{"role": "user", "content": "hi"}]
            outputs = await collect(llm.chat(chat, SHORT, output_kind="final"))
            assert outputs[0].prompt == "<|start|>user:hi<|end|><|start|>assistant:"
            options = {"add_generation_prompt": False}
            bare = await collect(llm.chat(chat, SHORT, template_options=options))
            assert bare[-1].prompt == "<|start|>user:hi<|end|>"

    run(story())


def test_close_ends_open_streams_and_both_threads() -> None:
    async def story() -> None:
        async with gated() as (llm, gate):
            task = asyncio.create_task(collect(llm.generate("a", LONG)))
            while (await llm.stats()).tally.requests_arrived == 0:
                await asyncio.sleep(0)
            gate.num_let.release(10_000)
            await llm.close()
            outputs = await task
            assert outputs[-1].finished
            await llm.close()
            names = {thread.name for thread in threading.enumerate()}
            assert "forebay-engine" not in names
            assert "forebay-device" not in names

    run(story())


def test_one_engine_serves_several_event_loops() -> None:
    llm = AsyncLLM(max_model_len=64)

    async def story() -> None:
        assert len((await collect(llm.generate("a", SHORT)))[-1].outputs[0].token_ids) == 12

    run(story())
    run(story())
    run(llm.close())
