"""A: preemption thrash and livelock."""

import pytest

from forebay.core.effects import RefuseReason, SwapIn, SwapOut
from forebay.core.events import FinishReason
from forebay.core.limits import ArtificialPressure, Fencing, PreemptionMode
from tests.cases.scenes import admissions, job, text, turns, unpressed, world
from tests.support.driver import Job, World


def test_a1_a_long_prompt_is_not_started_halfway() -> None:
    """A1 (vllm #37307, #21809, #18115): admit only when all known tokens have their blocks.

    Three runners hold 36 of 40 blocks; the first chunk of D would fit, the other eight never do.
    Right: D starts once, after a runner has ended, and nothing is computed twice.
    """
    runners = [job(177, 15, key) for key in range(3)]
    scene = world(40, *runners, block_size=16, max_num_batched_tokens=64, max_num_seqs=8)
    while len(scene.scheduler.rooms.queues.running) < 3:
        scene.turn()
    late = scene.submit(job(192, 8, 9))
    assert scene.scheduler.gauges().blocks_free == 4
    scene.run()
    (start,) = admissions(scene.steps, late)
    ended_before = {leave.seq_id for step in scene.steps[:start] for leave in step.left}
    assert ended_before
    assert not scene.preempted
    assert scene.scheduler.tally.tokens == 3 * (177 + 14) + 192 + 7


def test_a3a_evict_and_requeue_does_not_go_on_for_ever() -> None:
    """A3 a (inference-sim #297): 50 blocks of 16; a request that needs 57 is refused at once."""
    scene = world(50, block_size=16, max_model_len=4096)
    large = scene.submit(job(57 * 16 - 5, 4, 0))
    small = scene.submit(job(32, 4, 1))
    scene.run()
    assert scene.refused[large].reason is RefuseReason.NEVER_FITS
    assert scene.reason(small) is FinishReason.LENGTH


@pytest.mark.parametrize("mode", list(PreemptionMode))
def test_a3bc_evicted_requests_return_and_are_not_visited_meanwhile(mode: PreemptionMode) -> None:
    """A3 b, c (inference-sim #349, #529): five requests that need 8 of 10 blocks each.

    Right: no cascade (what the last victim frees is needed), all come back, at most four
    preemptions each, and the work done again is what the recorded preemptions dropped.
    """
    jobs = [job(8, 24, key) for key in range(5)]
    scene = world(10, *jobs, preemption_mode=mode, num_host_blocks=8)
    while (step := scene.plan()) is not None:
        if step.preempted:
            assert scene.scheduler.gauges().blocks_free < step.preempted[-1].num_blocks
        scene.finish_step()
    scene.run()
    assert scene.preempted
    for rid, each in enumerate(jobs):
        request = scene.requests[rid]
        assert request.num_preemptions <= 4
        assert len(admissions(scene.steps, request.id)) == request.num_preemptions + 1
        assert scene.tokens(request.id) == unpressed(each)
    dropped = sum(event.num_tokens for event in scene.preempted if event.how.value == "recompute")
    assert scene.scheduler.tally.recomputed_tokens == dropped


def test_a3d_a_request_larger_than_the_pool_does_not_stop_the_clock() -> None:
    """A3 d (inference-sim #963): it needs P+1 blocks, behind others. Refused; no attempt is made.

    Every step planned for the others computes something.
    """
    scene = world(5, job(8, 4, 0), job(4, 4, 1))
    too_large = scene.submit(job(21, 1, 2))
    scene.run()
    assert too_large in scene.refused
    assert len(scene.steps) == 4
    assert all(step.num_tokens for step in scene.steps)
    assert scene.scheduler.tally.stalled_rows == 0


def test_a4_blocks_behind_a_fence_do_not_cascade_into_more_victims() -> None:
    """A4 (vllm #49674, #49675): the victim's blocks are fenced, so nothing is free *now*.

    Three runners of two blocks fill P=6 and are all in the step in flight; two of them need a
    third block. Right: one victim, the others wait a step without losing anything.
    """
    scene = world(
        6, *(job(7, 12, key) for key in range(3)), steps_in_flight=2, fencing=Fencing.IN_FLIGHT
    )
    scene.turn()
    short = scene.plan()
    assert short is not None
    assert [event.request_id for event in short.preempted] == [2]
    assert short.num_tokens == 0
    assert scene.scheduler.gauges().blocks_fenced == 2
    assert scene.scheduler.gauges().blocks_free == 0
    before = [scene.requests[rid].sequences[0].computed for rid in (0, 1)]
    scene.finish_step()
    after = scene.plan()
    assert after is not None
    assert not after.preempted
    assert [len(grow.blocks) for grow in after.grown] == [1, 1]
    assert [scene.requests[rid].sequences[0].computed for rid in (0, 1)] == [
        computed + 1 for computed in before
    ]
    scene.run()


def test_a6_no_request_is_preempted_again_and_again_while_a_peer_is_spared() -> None:
    """A6 (FastDeploy #7783, unslothai/llama.cpp #186): ten refused allocations, three requests.

    A long decoder, one in the middle of its prompt and a short decoder: right is that none of
    them is ever more than `max_preemption_lead` preemptions ahead of a running peer.
    """
    lead = 2
    scene = world(
        12,
        Job(text(4, 0), 28),
        Job(text(16, 1), 12),
        Job(text(4, 2), 16),
        long_prefill_token_threshold=4,
        max_preemption_lead=lead,
        pressure=ArtificialPressure(seed=3, probability=0.9, max_refusals=10),
    )
    while scene.scheduler.has_work:
        scene.turn()
        counts = [req.num_preemptions for req in scene.scheduler.requests.values()]
        assert not counts or max(counts) <= min(counts) + lead + 1
    scene.run()
    assert scene.scheduler.tally.artificial_refusals == 10
    assert sorted(req.num_preemptions for req in scene.requests.values())[0] >= 1


def test_a7_the_cost_of_a_step_after_the_spike_is_that_of_a_fresh_engine() -> None:
    """A7 (sglang #26248): when pressure ends its effects end. The plan is a function of state.

    A spike preempts one of two runners and goes away; from then on each step has the shape that
    a fresh scheduler, brought to the same lengths, plans.
    """
    jobs = [Job(text(6, key), 40) for key in range(2)]
    pressed = world(26, *jobs)
    turns(pressed, 4)
    spike = [pressed.submit(job(12, 60, 5 + key)) for key in range(5)]
    turns(pressed, 20)
    assert pressed.preempted
    for rid in spike:
        pressed.abort(rid)
    turns(pressed, 2)
    fresh = world(26)
    for rid, each in enumerate(jobs):
        done = pressed.requests[rid].sequences[0].known - len(each.prompt)
        known = each.prompt + tuple(unpressed(each)[:done])
        fresh.submit(Job(known, each.max_tokens - done))
    first = len(pressed.steps)
    pressed.run()
    fresh.run()
    assert [shape(pressed, at) for at in range(first + 1, len(pressed.steps))] == [
        shape(fresh, at) for at in range(1, len(fresh.steps))
    ]


def shape(scene: World, at: int) -> tuple[int, ...]:
    step = scene.steps[at]
    return (step.num_tokens, step.num_rows, len(step.grown), len(step.copies), len(step.preempted))


@pytest.mark.parametrize("mode", [PreemptionMode.RECOMPUTE, PreemptionMode.SWAP])
def test_a10_a_token_that_arrives_after_preemption_is_kept(mode: PreemptionMode) -> None:
    """A10 (vllm-gaudi #1794): each output token is sampled once, however often one yields.

    With two steps in flight a victim still has a token under way; dropping it kept outputs right
    but made preemptions three times as many.
    """
    jobs = [job(7, 20, key) for key in range(3)]
    scene = world(
        8, *jobs, steps_in_flight=2, preemption_mode=mode, num_host_blocks=12, max_num_seqs=3
    )
    sampled: list[int] = []
    draw = scene.executor._sample

    def count(seq, stops, filled):
        sampled.append(seq)
        draw(seq, stops, filled)

    scene.executor._sample = count
    late = 0
    while scene.scheduler.has_work:
        if scene.plan() is not None:
            victims = scene.scheduler.rooms.queues.waiting
            late += sum(seq.pending for req in victims for seq in req.live)
        else:
            scene.finish_step()
    scene.run()
    assert late > 0, "no victim ever had a token under way"
    assert len(sampled) == 3 * 20
    copies = [copy for step in scene.steps for copy in step.copies]
    assert bool(copies) == (mode is PreemptionMode.SWAP)
    assert all(isinstance(copy, SwapOut | SwapIn) for copy in copies)
