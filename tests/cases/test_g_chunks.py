"""G: chunked prefill."""

import pytest

from forebay.config import EngineConfig
from forebay.core.events import FinishReason
from forebay.core.limits import Policy, PreemptionMode
from tests.cases.scenes import admissions, computed_by, job, text, turns, unpressed, world
from tests.support.driver import Job


def test_g1_a_prompt_whose_next_chunk_has_no_block_waits() -> None:
    """G1 (sglang #30743): `P=8 bs=4 B=8`; the allocation of a chunk failed and the server exited.

    A needs 6 blocks, others hold 5. Right: A is not in the middle of its prompt without blocks:
    it waits whole, and then each of its chunks has its blocks from the start.
    """
    scene = world(8, job(20, 3, 0), max_num_batched_tokens=8)
    turns(scene, 3)
    assert scene.scheduler.gauges().blocks_active == 5
    late = scene.submit(job(24, 2, 1))
    turns(scene, 2)
    assert scene.reason(0) is FinishReason.LENGTH
    assert not admissions(scene.steps, late)
    turns(scene, 1)
    (start,) = admissions(scene.steps, late)
    (join,) = scene.steps[start - 1].joined
    assert len(join.blocks) == 6
    scene.run()
    chunks = [chunk.num_tokens for step in scene.steps[start - 1 :] for chunk in step.chunks]
    assert chunks == [8, 8, 8]
    assert not scene.preempted


def test_g2_hits_that_nobody_holds_cost_a_free_block() -> None:
    """G2 (sglang #34676): admission counted cached blocks both as hits and as room.

    4 blocks are free, 3 of them cached and to be hit by B, who needs 5. Naive: 2 more needed,
    4 free, go. Right: 5 needed, 4 free, wait; and when it starts the allocator has them.
    """
    scene = world(6, job(12, 1, 0), prefix_caching=True)
    scene.run()
    scene.submit(job(8, 4, 1))
    turns(scene, 1)
    gauges = scene.scheduler.gauges()
    assert (gauges.blocks_cached, gauges.blocks_free) == (3, 1)
    late = scene.submit(Job(text(12, 0) + text(8, 7), 2))
    turns(scene, 1)
    assert not admissions(scene.steps, late)
    scene.run()
    (start,) = admissions(scene.steps, late)
    assert scene.steps[start - 1].joined[0].num_computed > 0
    assert not scene.preempted


def test_g3_the_length_of_a_resumed_request_counts_its_output() -> None:
    """G3 (sglang #7434): A(p=4, m=40) preempted at 20 outputs needs room for 24 tokens.

    6 blocks, while another holds 3 of 8: it must not be taken into 5, which fit the prompt.
    """
    scene = world(8, job(4, 28, 0, priority=5), policy=Policy.PRIORITY, max_num_seqs=1)
    turns(scene, 20)
    scene.submit(job(4, 1, 1, priority=0))
    turns(scene, 1)
    (event,) = scene.preempted
    request = scene.requests[event.request_id]
    assert scene.scheduler.rooms.kv.probe(request).cost == 6
    step = scene.plan()
    assert step is not None
    (join,) = step.joined
    assert (join.num_known, len(join.blocks)) == (24, 6)
    assert computed_by(step, scene) == {0: 24}
    scene.finish_step()
    scene.run()
    assert scene.tokens(0) == unpressed(job(4, 28, 0))


def test_g3_a_resumed_request_is_not_taken_into_the_room_of_its_prompt() -> None:
    """G3, the other side: P=8, the runner ahead holds 3, A's 24 tokens need 6. It waits."""
    scene = world(8, job(8, 20, 0), job(4, 20, 1))
    while not scene.preempted:
        scene.turn()
    need = scene.limits.blocks_for(scene.requests[1].sequences[0].known)
    assert need > scene.limits.blocks_for(4)
    while scene.scheduler.gauges().num_waiting:
        free = scene.scheduler.gauges().blocks_free
        scene.turn()
    assert free >= need
    scene.run()
    assert scene.requests[1].num_preemptions == 1


@pytest.mark.parametrize("threshold", [0, 5, 64, 1000])
def test_g8_a_chunk_larger_than_a_step_is_cut_to_the_step(threshold: int) -> None:
    """G8 (sglang-jax #1551): it killed the scheduler at the first long prompt.

    Right: the settings are reconciled at start, and no step computes more than it may.
    """
    config = EngineConfig(max_num_batched_tokens=64, long_prefill_token_threshold=threshold)
    config.check()
    assert config.chunk_limit == min(threshold or 64, 64)
    scene = world(
        64, max_num_batched_tokens=64, long_prefill_token_threshold=threshold, max_num_seqs=2
    )
    scene.submit(job(200, 2, 0))
    scene.run()
    chunks = [chunk.num_tokens for step in scene.steps for chunk in step.chunks]
    assert set(chunks[:-1]) == {config.chunk_limit}
    assert sum(chunks) == 200


@pytest.mark.parametrize("mode", list(PreemptionMode))
def test_g8_a_budget_below_the_number_of_runners_starves_nobody_for_ever(
    mode: PreemptionMode,
) -> None:
    """G8, beyond what the settings allow: two tokens a step for four runners. All end."""
    jobs = [job(5, 6, key) for key in range(4)]
    scene = world(
        12, *jobs, max_num_batched_tokens=2, max_num_seqs=4, preemption_mode=mode, num_host_blocks=4
    )
    scene.run()
    assert max(step.num_tokens for step in scene.steps) == 2
    assert [len(scene.tokens(rid)) for rid in range(4)] == [6] * 4
