"""E: leaks, double frees and counts of holds."""

import pytest

from forebay.core.blocks import BlockPool, Hold
from forebay.core.draft import StepDraft
from forebay.core.effects import Cause, Yield
from forebay.core.events import FinishReason
from forebay.core.limits import ArtificialPressure, PreemptionMode
from forebay.core.prefix import PrefixIndex
from forebay.core.swap import HostPool, HostRun
from forebay.errors import InvariantError
from tests.cases.scenes import admissions, job, text, turns, world
from tests.support.driver import Job


def test_e1_a_block_is_never_freed_twice() -> None:
    """E1 (vllm #42571, #42612): the same block twice in one free, a free block freed again.

    Right: dropping again drops nothing, a hold cannot have a block twice, and a hold that lies
    raises instead of making the count negative.
    """
    pool = BlockPool(4, PrefixIndex())
    first, second = Hold(), Hold()
    (block,) = pool.take(first, 1)
    pool.share(second, [block])
    pool.drop(first)
    pool.drop(first)
    assert (pool.num_free, pool.num_holds(block)) == (3, 1)
    pool.drop(second)
    assert (pool.num_free, pool.num_holds(block)) == (4, 0)
    with pytest.raises(InvariantError, match="freed twice"):
        pool.drop(Hold([block]))
    assert pool.num_holds(block) == 0
    with pytest.raises(InvariantError, match="twice"):
        pool.share(Hold(), [block, block])
    assert pool.is_free(block)


def test_e1_a_host_slot_is_never_freed_twice() -> None:
    """E1 for host memory: giving a run back again raises."""
    pool = HostPool(2)
    run = HostRun({}, tuple(pool.take(2)))
    pool.give_back(run)
    with pytest.raises(InvariantError, match="freed twice"):
        pool.give_back(run)


@pytest.mark.parametrize("state", ["queued", "running", "preempted", "swapped"])
def test_e2_a_second_release_does_not_hand_a_block_out_twice(state: str) -> None:
    """E2 (TensorRT-LLM #14937): a duplicate release left a block both free and in use.

    A request is aborted twice, in each state. Right: the second time changes nothing, and the
    next two requests, which fill the pool, share no block.
    """
    mode = PreemptionMode.SWAP if state == "swapped" else PreemptionMode.RECOMPUTE
    scene = world(4, job(7, 9, 0), job(7, 9, 1), preemption_mode=mode, num_host_blocks=4)
    late = scene.submit(job(4, 4, 2)) if state == "queued" else 1
    turns(scene, 2 if state in ("queued", "running") else 3)
    assert {event.how for event in scene.preempted} == {
        "preempted": {Yield.RECOMPUTE},
        "swapped": {Yield.SWAP},
    }.get(state, set())
    scene.abort(late)
    before = scene.scheduler.gauges()
    scene.abort(late)
    assert scene.scheduler.gauges() == before
    for rid in (0, 1):
        scene.abort(rid)
    scene.submit(job(8, 1, 5))
    scene.submit(job(8, 1, 6))
    step = scene.turn()
    assert step is not None
    tables = [set(join.blocks) for join in step.joined]
    assert [len(table) for table in tables] == [2, 2]
    assert not tables[0] & tables[1]
    scene.run()


ROUTES = {
    "finish": {},
    "stop with the extra slot of an overlapped step": {"stop_every": 1},
    "abort in the middle of a prompt": {"abort_at": 2},
    "deadline while running": {"deadline": 6},
}


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("mode", list(PreemptionMode))
@pytest.mark.parametrize("caching", [False, True])
def test_e3_when_idle_free_and_cached_blocks_are_the_whole_pool(
    route: str, mode: PreemptionMode, caching: bool
) -> None:
    """E3 (sglang-jax #982, #994; sglang #6888, #11970, #140, #105): release by several paths.

    Two requests retract each other on the way. Right: whatever the path, when idle
    `free + cached = P`, host memory is empty, and a request as large as the pool starts at once.
    """
    given = dict(ROUTES[route])
    abort_at = given.pop("abort_at", None)
    scene = world(
        6,
        preemption_mode=mode,
        num_host_blocks=5,
        prefix_caching=caching,
        steps_in_flight=2,
        max_num_batched_tokens=4,
        max_num_seqs=2,
        pressure=ArtificialPressure(seed=5, max_refusals=3),
    )
    for key in range(2):
        scene.submit(Job(text(7, key), 12, **given))
    for turn in range(30):
        if turn == abort_at:
            scene.abort(0)
        scene.turn()
    scene.run()
    gauges = scene.scheduler.gauges()
    assert gauges.blocks_free + gauges.blocks_cached == 6
    assert (gauges.blocks_active, gauges.blocks_fenced, gauges.host_used) == (0, 0, 0)
    whole = scene.submit(job(24, 1, 9))
    assert scene.turn() is not None
    scene.run()
    assert scene.reason(whole) is FinishReason.LENGTH


def test_e8_yielding_again_does_not_add_up() -> None:
    """E8 (TensorRT-LLM #9931, #9997): pausing a paused request grew state until a crash.

    Right: only running requests are asked to yield; one that waits cannot be told to again, and
    forty refusals leave nothing behind.
    """
    scene = world(
        80,
        job(6, 30, 0),
        job(6, 30, 1),
        block_size=1,
        pressure=ArtificialPressure(seed=2, probability=0.9, max_refusals=40),
    )
    while scene.scheduler.has_work:
        scene.turn()
        actions, kv = scene.scheduler.rooms.actions, scene.scheduler.rooms.kv
        assert len(actions.batch) <= 2
        assert len(actions.leaving) <= 2
        assert not kv.fences.holds
    assert len(scene.preempted) >= 20
    scene.run()


@pytest.mark.parametrize("mode", [PreemptionMode.RECOMPUTE, PreemptionMode.SWAP])
def test_e8_who_waits_cannot_yield(mode: PreemptionMode) -> None:
    """E8: asked all the same, the machine stops; blocks, host slots and queues are as before."""
    scene = world(4, job(7, 9, 0), job(7, 9, 1), preemption_mode=mode, num_host_blocks=4)
    turns(scene, 3)
    (event,) = scene.preempted
    request, before = scene.requests[event.request_id], scene.scheduler.gauges()
    draft = StepDraft.start(scene.limits, scene.now)
    with pytest.raises(InvariantError, match="not in the transition table"):
        scene.scheduler.rooms.actions.preempt(request, Cause.BLOCKS, draft)
    assert scene.scheduler.gauges() == before
    assert scene.scheduler.rooms.queues.waiting == [request]


def test_e9_a_failed_admission_lets_go_of_its_hits() -> None:
    """E9 (sglang #16067): a state slot leaked when scheduling failed after a cache hit.

    B hits two blocks of A's and lacks others. Right: while it waits nothing holds them, they
    stay findable, and they can still be given to whoever runs.
    """
    scene = world(6, job(8, 1, 0), prefix_caching=True)
    scene.run()
    runner = scene.submit(job(12, 5, 1))
    turns(scene, 2)
    blocked = scene.submit(Job(text(8, 0) + text(8, 7), 2))
    pool = scene.scheduler.rooms.kv.pool
    holds = [pool.num_holds(block) for block in range(6)]
    assert scene.scheduler.gauges().blocks_cached == 2
    assert holds.count(0) == 2
    turns(scene, 1)
    assert [pool.num_holds(block) for block in range(6)] == holds
    assert scene.scheduler.gauges().num_waiting == 1
    scene.run()
    assert scene.reason(runner) is FinishReason.LENGTH
    assert len(admissions(scene.steps, blocked)) == 1
