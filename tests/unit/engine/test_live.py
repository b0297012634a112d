import threading
from typing import Any

import pytest

from forebay.core.effects import Step
from forebay.core.events import FinishReason
from forebay.core.limits import PreemptionMode
from forebay.engine.live import LiveEngine
from forebay.engine.outputs import RequestOutput
from forebay.engine.ports import StepResult
from forebay.errors import BadRequest, DeviceFault, InvariantError, NeverFits
from forebay.exec.null import NullExecutor
from tests.support.engines import Desk, letters, limits_of, null_engine, null_executor

DEPTHS = (1, 2, 3)


def tokens_of(outputs: list[RequestOutput]) -> list[list[int]]:
    return [one.token_ids for output in outputs for one in output.outputs]


def run_all(limits: Any, *, num_requests: int = 12, **params: Any) -> list[RequestOutput]:
    with null_engine(limits) as desk:
        records = [
            desk.submit(8 + number, **{"max_tokens": 30, **params})
            for number in range(num_requests)
        ]
        return desk.wait(*records)


@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("mode", PreemptionMode)
def test_a_pool_far_too_small_changes_no_output(mode: PreemptionMode, depth: int) -> None:
    free = run_all(limits_of())
    tight = run_all(limits_of(20, preemption_mode=mode, steps_in_flight=depth))
    assert tokens_of(tight) == tokens_of(free)
    assert [one.text for output in tight for one in output.outputs] == [
        letters(ids) for ids in tokens_of(free)
    ]
    assert sum(output.metrics.num_preemptions for output in tight) > 0
    assert {one.finish_reason for output in tight for one in output.outputs} == {"length"}


@pytest.mark.parametrize("depth", DEPTHS)
def test_a_stop_string_ends_at_the_same_token_however_many_steps_are_out(depth: int) -> None:
    [whole] = run_all(limits_of(), num_requests=1)
    text = whole.outputs[0].text
    stop = text[7:10]
    end = text.index(stop)
    [cut] = run_all(limits_of(steps_in_flight=depth), num_requests=1, stop=[stop])
    one = cut.outputs[0]
    assert (one.text, one.finish_reason, one.stop_reason) == (text[:end], "stop", stop)
    assert one.token_ids == whole.outputs[0].token_ids[: end + len(stop)]


@pytest.mark.parametrize("depth", DEPTHS)
def test_a_stop_token_ends_at_the_same_token_however_many_steps_are_out(depth: int) -> None:
    [whole] = run_all(limits_of(), num_requests=1)
    ids = whole.outputs[0].token_ids
    [cut] = run_all(limits_of(steps_in_flight=depth), num_requests=1, stop_token_ids=[ids[6]])
    one = cut.outputs[0]
    assert one.token_ids == ids[: ids.index(ids[6]) + 1]
    assert one.text == letters(one.token_ids[:-1])
    assert (one.finish_reason, one.stop_reason) == ("stop", ids[6])


def test_the_models_end_token_ends_a_sequence_unless_ignored() -> None:
    [whole] = run_all(limits_of(), num_requests=1)
    end = whole.outputs[0].token_ids[4]
    with null_engine(eos_token_ids=frozenset([end])) as desk:
        [output] = desk.wait(desk.submit(8, max_tokens=30))
    assert len(output.outputs[0].token_ids) == 5
    with null_engine(eos_token_ids=frozenset([end])) as desk:
        [output] = desk.wait(desk.submit(8, max_tokens=30, ignore_eos=True))
    assert len(output.outputs[0].token_ids) == 30


def test_branches_of_a_group_come_back_by_index() -> None:
    with null_engine(limits_of(30)) as desk:
        outputs = desk.wait(*[desk.submit(9, n=3, max_tokens=12) for _ in range(3)])
    for output in outputs:
        assert [one.index for one in output.outputs] == [0, 1, 2]
        assert len({tuple(one.token_ids) for one in output.outputs}) == 3
        assert all(len(one.token_ids) == 12 for one in output.outputs)


class Gate:
    """An executor whose steps wait until they are let through."""

    def __init__(self, executor: NullExecutor) -> None:
        self._executor = executor
        self.add, self.close = executor.add, executor.close
        self.num_let = threading.Semaphore(0)
        self.arrived = threading.Semaphore(0)

    def execute(self, step: Step) -> StepResult:
        self.arrived.release()
        assert self.num_let.acquire(timeout=20)
        return self._executor.execute(step)


def test_abort_ends_waiting_and_running_requests_and_keeps_what_they_have() -> None:
    limits = limits_of(max_num_seqs=1)
    gate = Gate(null_executor(limits))
    with null_engine(limits, gate) as desk:
        running, waiting = desk.submit(max_tokens=50), desk.submit(max_tokens=50)
        for _ in range(3):
            gate.num_let.release()
        desk.wait_until(lambda: len(running.read().outputs[0].token_ids) == 3)
        desk.engine.abort("r2")
        desk.engine.abort("no such request")
        desk.wait(waiting)
        desk.engine.abort("r1")
        [stopped] = desk.wait(running)
        gate.num_let.release(10)
        [later] = desk.wait(desk.submit(max_tokens=4))
    assert waiting.read().outputs[0].finish_reason == "abort"
    assert waiting.read().outputs[0].token_ids == []
    assert stopped.outputs[0].finish_reason == "abort"
    assert len(stopped.outputs[0].token_ids) == 3
    assert later.outputs[0].finish_reason == "length"


def test_a_deadline_ends_a_request_without_any_other_event() -> None:
    limits = limits_of()
    gate = Gate(null_executor(limits))
    with null_engine(limits, gate) as desk:
        [output] = desk.wait(desk.submit(max_tokens=50, deadline_ms=30))
        assert output.outputs[0].finish_reason == "deadline"
        gate.num_let.release(10)


def test_a_request_larger_than_the_pool_can_ever_hold_is_refused_at_once() -> None:
    with null_engine(limits_of(4)) as desk:
        with pytest.raises(NeverFits, match="the pool has 4"):
            desk.submit(17)
        with pytest.raises(NeverFits, match="max_model_len"):
            desk.submit(600)
        with pytest.raises(BadRequest, match="empty"):
            desk.submit(0)
        with pytest.raises(BadRequest, match="token id 1000"):
            desk.submit(prompt=[1, 1000])
        with pytest.raises(BadRequest, match="token id -1"):
            desk.submit(prompt=[-1])
        [fine] = desk.wait(desk.submit(4, max_tokens=4))
    assert fine.outputs[0].finish_reason == "length"


def test_b3_a_lone_request_that_fills_the_pool_ends_with_a_reason() -> None:
    with null_engine(limits_of(4)) as desk:
        first, second = desk.submit(8, max_tokens=100), desk.submit(4, max_tokens=4)
        outputs = desk.wait(first, second)
    assert [output.outputs[0].finish_reason for output in outputs] == ["kv_capacity", "length"]
    assert len(outputs[0].outputs[0].token_ids) == 9
    assert outputs[0].notice is not None
    assert "capped at 9 tokens" in outputs[0].notice


def test_an_id_is_refused_while_it_is_in_use() -> None:
    limits = limits_of()
    gate = Gate(null_executor(limits))
    with null_engine(limits, gate) as desk:
        first = desk.submit(external_id="same", max_tokens=2)
        with pytest.raises(BadRequest, match="'same' is in use"):
            desk.submit(external_id="same")
        gate.num_let.release(10)
        desk.wait(first)
        desk.wait(desk.submit(external_id="same", max_tokens=2))


class Breaking:
    """An executor that fails at its third step."""

    def __init__(self, executor: NullExecutor) -> None:
        self._executor = executor
        self.add, self.close = executor.add, executor.close

    def execute(self, step: Step) -> StepResult:
        if step.seq == 3:
            raise RuntimeError("the device fell off the bus")
        return self._executor.execute(step)


def test_a_fault_of_the_executor_ends_all_requests_and_the_engine_says_why(
    caplog: pytest.LogCaptureFixture,
) -> None:
    limits = limits_of(max_num_seqs=2)
    with null_engine(limits, Breaking(null_executor(limits))) as desk:
        records = [desk.submit(max_tokens=50) for _ in range(4)]
        outputs = desk.wait(*records)
        desk.wait_until(lambda: desk.engine.fault is not None)
        with pytest.raises(DeviceFault, match=r"engine is dead: .*fell off the bus"):
            desk.submit()
        assert desk.engine.stats().tally.requests_arrived == 4
    assert {output.outputs[0].finish_reason for output in outputs} == {"error"}
    assert "fell off the bus" in (outputs[0].error or "")
    assert len(outputs[0].outputs[0].token_ids) == 2
    assert "fell off the bus" in caplog.text


class Sulking(Gate):
    """An executor that claims to have done another step than it was given."""

    def execute(self, step: Step) -> StepResult:
        return StepResult(seq=type(step.seq)(step.seq + 5))


def test_a_broken_promise_stops_the_engine(caplog: pytest.LogCaptureFixture) -> None:
    limits = limits_of()
    with null_engine(limits, Sulking(null_executor(limits))) as desk:
        [output] = desk.wait(desk.submit())
        assert output.outputs[0].finish_reason == "error"
        desk.wait_until(lambda: desk.engine.fault is not None)
        assert isinstance(desk.engine.fault, InvariantError)
    assert "the engine died" in caplog.text


def test_a_machine_that_is_stuck_is_an_error_and_no_spin(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("forebay.core.scheduler.Scheduler.plan", lambda self, now: None)
    with null_engine() as desk:
        [output] = desk.wait(desk.submit())
    assert "nothing planned" in (output.error or "")
    assert "blocks_total=1000" in (output.error or "")


def test_close_aborts_what_is_open_and_may_be_called_again() -> None:
    with null_engine() as desk:
        records = [desk.submit(max_tokens=400) for _ in range(3)]
        desk.engine.close()
        outputs = desk.wait(*records)
        assert {output.outputs[0].finish_reason for output in outputs} <= {"abort", "error"}
        desk.engine.close()
        with pytest.raises(BadRequest, match="closed"):
            desk.submit()
        assert desk.engine.stats().gauges.blocks_active == 0
        desk.engine.abort("r1")


def test_stats_tell_of_now_and_of_all_time() -> None:
    limits = limits_of()
    gate = Gate(null_executor(limits))
    with null_engine(limits, gate) as desk:
        record = desk.submit(8, max_tokens=3)
        gate.arrived.acquire(timeout=20)
        stats = desk.engine.stats()
        assert (stats.gauges.num_running, stats.gauges.blocks_active) == (1, 2)
        gate.num_let.release(10)
        desk.wait(record)
        stats = desk.engine.stats()
    assert (stats.gauges.num_running, stats.gauges.blocks_active) == (0, 0)
    assert stats.tally.requests_ended == 1


def test_requests_may_come_from_many_threads() -> None:
    with null_engine(limits_of(60)) as desk:
        found: list[RequestOutput] = []

        def client() -> None:
            for _ in range(5):
                found.extend(desk.wait(desk.submit(max_tokens=10)))

        threads = [threading.Thread(target=client) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(found) == 20
        assert {len(output.outputs[0].token_ids) for output in found} == {10}
        assert desk.engine.stats().gauges.blocks_active == 0


def test_a_seed_of_its_own_or_one_drawn_for_its_place() -> None:
    seeds: list[int] = []

    def note(engine: LiveEngine, desk: Desk) -> None:
        executor = engine._parts.executor
        assert isinstance(executor, NullExecutor)
        add = executor.add

        def listening(request: Any) -> None:
            seeds.append(request.seed)
            add(request)

        executor.add = listening  # type: ignore[method-assign]

    for _ in range(2):
        with null_engine() as desk:
            note(desk.engine, desk)
            desk.wait(*[desk.submit(max_tokens=1, seed=seed) for seed in (7, None, None)])
    assert seeds[:3] == seeds[3:]
    assert seeds[0] == 7
    assert len(set(seeds)) == 3


def test_the_reason_of_an_abort_can_be_given() -> None:
    limits = limits_of()
    gate = Gate(null_executor(limits))
    with null_engine(limits, gate) as desk:
        record = desk.submit(max_tokens=400)
        desk.engine.abort("r1", FinishReason.DEADLINE)
        [output] = desk.wait(record)
        gate.num_let.release(10)
    assert output.outputs[0].finish_reason == "deadline"
