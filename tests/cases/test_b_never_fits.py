"""B: requests that can never fit, or fit but cannot end."""

import pytest

from forebay.config import EngineConfig
from forebay.core.admission import Start
from forebay.core.draft import StepDraft
from forebay.core.effects import Cause, RefuseReason
from forebay.core.events import FinishReason
from forebay.core.limits import Policy
from forebay.errors import CapacityError
from forebay.memory_plan import MemoryFacts, plan_memory
from tests.cases.scenes import computed_by, job, turns, unpressed, world


def test_b1_longer_than_the_pool_is_refused_with_the_arithmetic() -> None:
    """B1 (vllm #39734, #35541, #35570, #2163, #52530): P=4, A(p=20) never fits; B is served."""
    scene = world(4)
    a = scene.submit(job(20, 4, 0))
    b = scene.submit(job(4, 4, 1))
    assert scene.refused[a].reason is RefuseReason.NEVER_FITS
    assert "need 5 blocks of 4 tokens" in scene.refused[a].message
    assert "the pool has 4" in scene.refused[a].message
    assert scene.turn() is not None
    scene.run()
    assert scene.reason(b) is FinishReason.LENGTH


def test_b1_reported_1002_tokens_on_49_blocks() -> None:
    """B1 as reported: 49 usable blocks of 16 and a prompt of 63 blocks."""
    scene = world(49, block_size=16)
    rid = scene.submit(job(1002, 16, 0))
    assert "need 63 blocks" in scene.refused[rid].message


def test_b2_output_that_cannot_fit_is_capped_before_the_first_step() -> None:
    """B2 (vllm #52530): usable 3 blocks, limit 16, A(p=8, m=8): the wall is at 12 tokens.

    Right: decided up front and told. The 13th token is sampled but never stored.
    """
    scene = world(3, max_model_len=16)
    a = scene.submit(job(8, 8, 0))
    assert scene.capped[a].max_tokens == 5
    assert "asked for up to 16 tokens" in scene.capped[a].message
    scene.run()
    assert scene.reason(a) is FinishReason.KV_CAPACITY
    assert scene.tokens(a) == unpressed(job(8, 5, 0))
    assert not scene.preempted
    assert len(scene.steps) == 5


@pytest.mark.parametrize("num_blocks", [1, 3, 7])
@pytest.mark.parametrize("block_size", [1, 4, 16])
def test_b2_startup_and_submission_use_one_number(num_blocks: int, block_size: int) -> None:
    """B2: the largest length that start-up accepts is served whole; one more is refused there."""
    facts = MemoryFacts(
        weights=0,
        activations=0,
        kv_per_token=1,
        host_free=10**9,
        device_free=10**9,
        device_total=10**9,
        longest_exact=10**6,
    )
    settings = {"num_gpu_blocks_override": num_blocks, "block_size": block_size}
    longest = plan_memory(EngineConfig(**settings, max_model_len=-1), facts).max_model_len
    with pytest.raises(CapacityError, match=f"largest max_model_len that fits is {longest}"):
        plan_memory(EngineConfig(**settings, max_model_len=longest + 1), facts)
    scene = world(num_blocks, block_size=block_size, max_model_len=longest)
    rid = scene.submit(job(longest - 1, 1, 0))
    assert scene.turn() is not None
    scene.run()
    assert not scene.capped
    assert scene.reason(rid) is FinishReason.LENGTH


def test_b3_the_last_runner_that_outgrows_the_pool_ends_alone() -> None:
    """B3 (sglang #19881, #14948, #15626): A(p=8, m=100) fills P=4; nobody is left to preempt.

    Right: A ends with a clear reason and whole output, its blocks are free, B is served.
    """
    scene = world(4)
    a = scene.submit(job(8, 100, 0))
    turns(scene, 8)
    assert scene.scheduler.gauges().blocks_free == 0
    b = scene.submit(job(4, 4, 1))
    turns(scene, 1)
    assert scene.reason(a) is FinishReason.KV_CAPACITY
    assert len(scene.tokens(a)) == 4 * 4 + 1 - 8
    assert scene.scheduler.gauges().blocks_free == 4
    assert scene.turn() is not None
    scene.run()
    assert scene.reason(b) is FinishReason.LENGTH
    assert not scene.preempted


def test_b5_limits_on_new_prompts_do_not_apply_to_resumption() -> None:
    """B5 (vllm #1934): chunking off, B=16, A(p=12, m=20) preempted after 8 outputs: 20 tokens.

    Right: it resumes in chunks of what a step takes, 16 and 4.
    """
    scene = world(
        8,
        job(12, 20, 0, priority=5),
        chunked_prefill=False,
        max_num_batched_tokens=16,
        max_num_seqs=1,
        policy=Policy.PRIORITY,
        steps_in_flight=1,
    )
    turns(scene, 8)
    urgent = scene.submit(job(4, 1, 1))
    turns(scene, 1)
    assert [(event.request_id, event.cause) for event in scene.preempted] == [(0, Cause.URGENT)]
    assert scene.reason(urgent) is FinishReason.LENGTH
    resumed = []
    for _ in range(2):
        step = scene.plan()
        assert step is not None
        resumed.append(computed_by(step, scene))
        scene.finish_step()
    assert resumed == [{0: 16}, {0: 4}]
    assert scene.requests[0].sequences[0].known == 21
    scene.run()


def test_b5_a_new_prompt_longer_than_a_step_is_refused_without_chunking() -> None:
    """B5, the limit that does apply: such a prompt could never start."""
    scene = world(8, chunked_prefill=False, max_num_batched_tokens=16, max_num_seqs=1)
    rid = scene.submit(job(17, 1, 0))
    assert scene.refused[rid].reason is RefuseReason.TOO_LONG
    assert "max_num_batched_tokens 16" in scene.refused[rid].message


def test_b6_every_request_is_accounted_for_at_every_step() -> None:
    """B6 (inference-sim #373, #386): injected = completed + running + queued + refused + aborted.

    The unservable ones are counted, with their reason, and so are those that time out.
    """
    scene = world(6, max_num_seqs=3)
    jobs = [job(8, 8, key) for key in range(6)]
    jobs += [job(25, 1, 7), job(24, 5, 8), job(4, 90, 9, abort_at=9)]
    jobs += [job(4, 90, 10, deadline=12), job(6, 0, 11)]
    for each in jobs:
        scene.submit(each)
    for turn in range(200):
        if turn == 9:
            scene.abort(8)
        scene.turn()
        gauges, tally = scene.scheduler.gauges(), scene.scheduler.tally
        alive = gauges.num_running + gauges.num_waiting + gauges.num_swapped
        assert tally.requests_arrived == len(jobs)
        assert tally.requests_refused == 2
        assert tally.requests_ended == len(scene.ended)
        assert tally.requests_arrived == 2 + len(scene.ended) + alive
    scene.run()
    reasons = [scene.reason(rid).value for rid in scene.requests]
    assert reasons == ["length"] * 6 + ["kv_capacity", "abort", "deadline"]


def test_b7_an_idle_engine_admits_an_admissible_head() -> None:
    """B7 (vllm-metal #479): after a stall, nothing re-tested admission though the cache was empty.

    Right: the next plan says yes, even where a watermark asks for half of the pool and all of it
    is cached content of requests that have ended.
    """
    scene = world(6, job(8, 12, 0), job(8, 12, 1), watermark=0.5, prefix_caching=True)
    scene.run()
    assert scene.scheduler.gauges().blocks_cached > 0
    rid = scene.submit(job(24, 1, 2))
    step = scene.plan()
    assert step is not None
    assert [join.seq_id // 8 for join in step.joined] == [rid]
    scene.finish_step()
    scene.run()


def test_b7_admission_is_a_function_of_the_present_state() -> None:
    """B7: asked twice it answers the same, and asking changes nothing."""
    scene = world(6, job(8, 4, 0), prefix_caching=True)
    scene.run()
    rid = scene.submit(job(8, 4, 0))
    rooms = scene.scheduler.rooms
    request, draft = scene.requests[rid], StepDraft.start(scene.limits, scene.now)
    holds = [rooms.kv.pool.num_holds(block) for block in range(6)]
    verdicts = [rooms.admission.decide(request, draft) for _ in range(3)]
    assert isinstance(verdicts[0], Start)
    assert verdicts[0] == verdicts[1] == verdicts[2]
    assert holds == [rooms.kv.pool.num_holds(block) for block in range(6)]
    scene.run()
