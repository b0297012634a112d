"""D: steps in flight while requests yield, stop and return."""

import pytest

from forebay.core.effects import JoinKind, Leave, LeaveKind, Yield
from forebay.core.events import FinishReason
from forebay.core.lifecycle import Queued, Running
from forebay.core.limits import ArtificialPressure, Fencing, Policy, PreemptionMode
from forebay.units import request_of
from tests.cases.scenes import job, joins, text, turns, unpressed, world
from tests.support.driver import Job, World

URGENT = {"policy": Policy.PRIORITY, "max_num_seqs": 1}


def yields_with_a_step_in_flight(mode: PreemptionMode) -> World:
    """Request 0 is preempted while step 2, in which it samples, is in flight."""
    scene = world(
        12,
        job(4, 10, 0, priority=5),
        steps_in_flight=3,
        preemption_mode=mode,
        num_host_blocks=8,
        **URGENT,
    )
    assert scene.plan() is not None
    assert scene.plan() is not None
    scene.submit(job(4, 2, 1, priority=0))
    scene.finish_step()
    step = scene.plan()
    assert step is not None
    assert [event.request_id for event in step.preempted] == [0]
    return scene


def test_d2_a_stale_frame_never_moves_counters_of_a_reset_request() -> None:
    """D2 (vllm #47900, #48245): the frame of step 2 returns after its request was reset.

    Right: it delivers its token once; progress stays at zero, and the request is not taken
    again before.
    """
    scene = yields_with_a_step_in_flight(PreemptionMode.RECOMPUTE)
    request, (seq,) = scene.requests[0], scene.requests[0].sequences
    assert (seq.computed, seq.known, seq.pending) == (0, 5, 1)
    scene.finish_step()
    assert (seq.computed, seq.known, seq.pending) == (0, 6, 0)
    assert isinstance(request.state, Queued)
    scene.run()
    assert scene.tokens(0) == unpressed(job(4, 10, 0))


def test_d2_a_request_to_be_recomputed_waits_for_its_token_in_flight() -> None:
    """D2: until the stale frame is back nobody knows how many tokens there are to compute."""
    scene = yields_with_a_step_in_flight(PreemptionMode.RECOMPUTE)
    scene.abort(1)
    assert scene.plan() is None
    scene.finish_step()
    step = scene.plan()
    assert step is not None
    assert joins(step) == [(0, JoinKind.RESUMED)]
    assert step.joined[0].num_known == 6
    scene.run()


def test_d2_a_stale_frame_leaves_swapped_progress_whole() -> None:
    """D2 under swap: the request may be back in the batch before its old frame is."""
    scene = yields_with_a_step_in_flight(PreemptionMode.SWAP)
    (seq,) = scene.requests[0].sequences
    scene.abort(1)
    step = scene.plan()
    assert step is not None
    assert joins(step) == [(0, JoinKind.SWAPPED_IN)]
    assert (seq.computed, seq.known, seq.pending) == (6, 5, 2)
    scene.finish_step()
    assert (seq.computed, seq.known, seq.pending) == (6, 6, 1)
    scene.run()
    assert scene.scheduler.tally.recomputed_tokens == 0


@pytest.mark.parametrize("mode", [PreemptionMode.RECOMPUTE, PreemptionMode.SWAP])
def test_d3_a_resumed_request_brings_all_its_tokens(mode: PreemptionMode) -> None:
    """D3 (vllm #26385, #28787): A(p=4, m=8) preempted after 3 outputs, away for two steps.

    Right: the record that brings it back names all 7 tokens, and its whole table.
    """
    scene = world(6, job(4, 8, 0, priority=5), preemption_mode=mode, num_host_blocks=4, **URGENT)
    turns(scene, 3)
    scene.submit(job(4, 2, 1, priority=0))
    turns(scene, 2)
    assert [event.request_id for event in scene.preempted] == [0]
    step = scene.turn()
    assert step is not None
    (join,) = step.joined
    swapped = mode is PreemptionMode.SWAP
    assert join.kind is (JoinKind.SWAPPED_IN if swapped else JoinKind.RESUMED)
    assert (join.num_known, join.num_computed) == (7, 6 if swapped else 0)
    assert len(join.blocks) == 2
    scene.run()
    assert scene.tokens(0) == unpressed(job(4, 8, 0))


def test_d5_a_block_counted_as_free_can_be_taken_in_the_same_step() -> None:
    """D5 (sglang #14972): blocks that a step in flight may write are pending, not free.

    P=6 is full and the victim's two blocks are fenced. Right: the gauge says 0 free and 2 fenced,
    nobody gets one in this step, and after the fence exactly those two are handed out.
    """
    scene = world(
        6, *(job(7, 12, key) for key in range(3)), steps_in_flight=2, fencing=Fencing.IN_FLIGHT
    )
    scene.turn()
    victim = list(scene.requests[2].sequences[0].table.blocks)
    step = scene.plan()
    assert step is not None
    assert step.preempted
    assert not step.grown
    gauges = scene.scheduler.gauges()
    assert (gauges.blocks_free, gauges.blocks_fenced) == (0, len(victim))
    scene.finish_step()
    assert scene.scheduler.gauges().blocks_free == len(victim)
    step = scene.plan()
    assert step is not None
    assert sorted(block for grow in step.grown for block in grow.blocks) == sorted(victim)
    scene.run()


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("fencing", list(Fencing))
def test_d5_every_free_block_of_every_step_can_be_taken(depth: int, fencing: Fencing) -> None:
    """D5 as a whole run: a plan that counts on a block gets it, or the pool raises."""
    jobs = [job(7, 20, key) for key in range(4)]
    scene = world(9, *jobs, steps_in_flight=depth, fencing=fencing)
    scene.run()
    assert scene.preempted
    assert scene.scheduler.tally.peak_active_blocks == 9


ENDS = {
    "length": ({}, FinishReason.LENGTH),
    "stop": ({"stop_every": 1}, FinishReason.STOP),
    "abort": ({"abort_at": 3}, FinishReason.ABORT),
    "deadline": ({"deadline": 3}, FinishReason.DEADLINE),
    "capacity": ({"max_tokens": 100}, FinishReason.KV_CAPACITY),
}


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("mode", [PreemptionMode.RECOMPUTE, PreemptionMode.SWAP])
def test_d6_all_ends_and_yields_go_through_one_release(end: str, mode: PreemptionMode) -> None:
    """D6 (vllm-rbln #903): a new way to free bypassed the one that cleaned side tables.

    Right: whatever ends or yields goes through `KvSpace.release`, once for each time it got a
    table, and the executor hears of each row that leaves.
    """
    more, reason = ENDS[end]
    given = {"max_tokens": 9, "at": 1, **more}
    abort_at = given.pop("abort_at", None)
    scene = world(
        6,
        preemption_mode=mode,
        num_host_blocks=6,
        pressure=ArtificialPressure(seed=1, probability=0.5, max_refusals=2),
    )
    released: list[int] = []
    release = scene.scheduler.rooms.kv.release

    def spy(seq, last_step):
        if seq.table.blocks:
            released.append(seq.id)
        release(seq, last_step)

    scene.scheduler.rooms.kv.release = spy
    rid = scene.submit(Job(text(6, 0), **given))
    for turn in range(400):
        if turn == abort_at:
            scene.abort(rid)
        scene.turn()
    scene.submit(job(2, 1, 1))
    scene.run()
    assert scene.reason(rid) is reason
    admitted = [
        join for step in scene.steps for join in step.joined if request_of(join.seq_id) == rid
    ]
    left = [leave for step in scene.steps for leave in step.left if leave.seq_id == rid * 8]
    assert released.count(rid * 8) == len(admitted) == len(left)
    assert left[-1] == Leave(rid * 8, LeaveKind.FINISHED) or len(scene.preempted) == len(left)
    assert not isinstance(scene.requests[rid].state, Running)


@pytest.mark.parametrize("mode", [PreemptionMode.RECOMPUTE, PreemptionMode.SWAP])
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_d7_a_resumed_row_starts_from_the_newest_token(mode: PreemptionMode, depth: int) -> None:
    """D7 (tenstorrent/vllm-tt-plugin #57): a resumed request must not replay a stale token.

    Each time it returns, the record's count is reconciled against the executor's own buffer (the
    shadow executor asserts it), and the output is the one of a run without pressure.
    """
    scene = world(
        5,
        job(6, 10, 0),
        job(6, 10, 1),
        steps_in_flight=depth,
        preemption_mode=mode,
        num_host_blocks=5,
    )
    scene.run()
    hows = {event.how for event in scene.preempted}
    assert hows == {Yield.SWAP if mode is PreemptionMode.SWAP else Yield.RECOMPUTE}
    for rid in (0, 1):
        assert scene.tokens(rid) == unpressed(job(6, 10, rid))
