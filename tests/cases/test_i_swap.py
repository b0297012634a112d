"""I: swap, recompute, and when which of them is used."""

import pytest

from forebay.config import EngineConfig
from forebay.core.effects import Cause, JoinKind, SwapIn, SwapOut, Yield
from forebay.core.limits import Costs, Policy, PreemptionMode
from forebay.errors import CapacityError, ConfigError
from forebay.memory_plan import GIB, MIB, MemoryFacts, plan_memory
from tests.cases.scenes import admissions, job, joins, turns, unpressed, world

SWAP = PreemptionMode.SWAP


def test_i1_without_host_room_the_victim_is_recomputed() -> None:
    """I1 (vllm #787, #588, #5578; rllm #62): host pool of 2 blocks, the victim holds 3.

    Right: no error; it is recomputed, and that is counted.
    """
    jobs = [job(11, 6, 0), job(11, 6, 1)]
    scene = world(6, *jobs, preemption_mode=SWAP, num_host_blocks=2)
    scene.run()
    assert [event.how for event in scene.preempted] == [Yield.RECOMPUTE]
    assert scene.scheduler.tally.swaps_without_room == 1
    assert scene.scheduler.tally.swapped_out_blocks == 0
    assert [scene.tokens(rid) for rid in (0, 1)] == [unpressed(each) for each in jobs]


def test_i1_with_one_block_more_it_is_swapped() -> None:
    """I1, the boundary: a host pool of exactly the victim's 3 blocks."""
    scene = world(6, job(11, 6, 0), job(11, 6, 1), preemption_mode=SWAP, num_host_blocks=3)
    scene.run()
    assert [event.how for event in scene.preempted] == [Yield.SWAP]
    assert scene.scheduler.tally.swaps_without_room == 0
    assert scene.scheduler.tally.recomputed_tokens == 0


def test_i2_swap_without_swap_space_is_refused_at_start() -> None:
    """I2 (vllm #546): mode and size must be consistent."""
    with pytest.raises(ConfigError, match="swap_space is 0"):
        EngineConfig(preemption_mode="swap", swap_space=0).check()
    EngineConfig(preemption_mode="auto", swap_space=0).check()


@pytest.mark.parametrize("num_host_blocks", [2, 3, 5, 8])
def test_i2_a_swapped_request_always_comes_back(num_host_blocks: int) -> None:
    """I2: the engine stopped once host memory was in use. Right: swap-in is always reachable.

    Four requests that each grow to the whole pool keep host memory full; a newer arrival waits
    behind every swapped one.
    """
    jobs = [job(7, 10, key) for key in range(4)]
    scene = world(4, *jobs, preemption_mode=SWAP, num_host_blocks=num_host_blocks)
    turns(scene, 3)
    newest = scene.submit(job(4, 1, 9))
    peak = 0
    while scene.scheduler.has_work:
        scene.turn()
        peak = max(peak, scene.scheduler.gauges().host_used)
    scene.run()
    assert peak >= 2
    returns = [kind for step in scene.steps for _, kind in joins(step)]
    swaps = scene.scheduler.tally.preemptions_swap
    assert returns.count(JoinKind.SWAPPED_IN) == swaps > 0
    (start,) = admissions(scene.steps, newest)
    assert all(admissions(scene.steps, rid)[-1] <= start for rid in range(4))


def test_i3_each_event_says_which_mode_and_why() -> None:
    """I3 (vllm #3094): host KV was always 0 %, and nobody could tell when swapping applies.

    Right: a request of a single sequence is swapped too, the gauge shows it, and each event
    tells mode, cause and size.
    """
    scene = world(
        6,
        job(11, 6, 0),
        job(7, 6, 1, priority=5),
        preemption_mode=SWAP,
        num_host_blocks=4,
        policy=Policy.PRIORITY,
    )
    turns(scene, 2)
    scene.submit(job(4, 1, 2, priority=0))
    turns(scene, 1)
    (event,) = scene.preempted
    assert (event.request_id, event.how, event.cause) == (1, Yield.SWAP, Cause.URGENT)
    assert (event.num_blocks, event.num_tokens) == (2, 8)
    gauges = scene.scheduler.gauges()
    assert gauges.num_swapped == 1
    assert gauges.host_used == scene.scheduler.tally.swapped_out_blocks == 2
    scene.run()
    report = scene.ended[8].report
    assert report is not None
    assert (report.num_preemptions, report.num_swaps) == (1, 1)


@pytest.mark.parametrize(
    ("costs", "how"),
    [
        (Costs(prefill_ns_per_token=1000, swap_ns_per_block=1), Yield.SWAP),
        (Costs(prefill_ns_per_token=1, swap_ns_per_block=1000), Yield.RECOMPUTE),
    ],
)
def test_i3_auto_takes_what_the_measured_costs_say_is_cheaper(costs: Costs, how: Yield) -> None:
    """I3: with `auto` the reason is the predicted cost, measured at start."""
    scene = world(
        6,
        job(11, 6, 0),
        job(11, 6, 1),
        preemption_mode=PreemptionMode.AUTO,
        num_host_blocks=6,
        costs=costs,
    )
    scene.run()
    assert [event.how for event in scene.preempted] == [how]
    assert scene.scheduler.tally.swaps_without_room == 0


def facts(host_free: int) -> MemoryFacts:
    return MemoryFacts(
        weights=GIB,
        activations=64 * MIB,
        kv_per_token=64 << 10,
        host_free=host_free,
        device_free=host_free,
        device_total=host_free,
        longest_exact=2048,
    )


@pytest.mark.parametrize("gib", [3, 4, 8, 256])
def test_i4_the_default_swap_size_fits_the_host(gib: int) -> None:
    """I4 (dynamo #356): the default crashed small hosts. Right: it is sized by what is free."""
    config = EngineConfig(preemption_mode="swap", kv_tokens=16 << 10)
    plan = plan_memory(config, facts(gib * GIB))
    used = GIB + 64 * MIB + (plan.num_blocks + plan.num_host_blocks) * plan.block_bytes
    assert plan.num_host_blocks >= 1
    assert used <= gib * GIB
    assert bool(plan.notes) == (gib <= 4)


def test_i4_a_given_swap_size_is_checked_against_host_memory() -> None:
    """I4: asked for more than there is, start-up says so instead of crashing later."""
    config = EngineConfig(preemption_mode="swap", kv_tokens=16 << 10, swap_space=2)
    with pytest.raises(CapacityError, match="swap_space 2 GiB does not fit"):
        plan_memory(config, facts(3 * GIB))
    assert plan_memory(config, facts(8 * GIB)).num_host_blocks == 2 * GIB // (16 * (64 << 10))


@pytest.mark.parametrize("mode", [PreemptionMode.RECOMPUTE, SWAP])
def test_i6_one_decision_frees_enough_for_every_runner(mode: PreemptionMode) -> None:
    """I6 (transformers #43150, #45184, #46587): several victims in one step, so nobody stalls.

    Six runners fill P=12 and all cross a block boundary in the same step. Right: those who
    remain get their block in that very step.
    """
    scene = world(
        12, *(job(7, 9, key) for key in range(6)), preemption_mode=mode, num_host_blocks=9
    )
    turns(scene, 2)
    (step,) = turns(scene, 1)
    assert step is not None
    assert [event.request_id for event in step.preempted] == [5, 4]
    assert step.num_rows == 4
    assert scene.scheduler.tally.stalled_rows == 0
    scene.run()


def test_i6_swapped_requests_come_back_before_new_prompts_start() -> None:
    """I6: restore before prefill, and first the one that was preempted last."""
    scene = world(8, *(job(7, 9, key) for key in range(4)), preemption_mode=SWAP, num_host_blocks=9)
    turns(scene, 3)
    scene.submit(job(4, 2, 7))
    scene.run()
    order = [join for step in scene.steps[1:] for join in joins(step)]
    assert order[-1] == (4, JoinKind.NEW)
    assert {kind for _, kind in order[:-1]} == {JoinKind.SWAPPED_IN}


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("n", [1, 3])
def test_i7_swap_and_recompute_give_the_same_output(depth: int, n: int) -> None:
    """I7 (unslothai/llama.cpp #185, #186; onnxruntime-genai #2418): identical bits for swap,
    identical context for recompute; in a deterministic executor both are equal.

    The shadow executor compares, slot by slot, what a row attends to with its own prefix.
    """
    jobs = [job(6, 14, key, n=n) for key in range(3)]
    outputs = []
    for mode in (PreemptionMode.RECOMPUTE, SWAP):
        scene = world(
            20 if n > 1 else 8,
            *jobs,
            preemption_mode=mode,
            num_host_blocks=40,
            steps_in_flight=depth,
            block_size=4,
        )
        scene.run()
        assert scene.preempted
        swapping = mode is SWAP
        assert {event.how for event in scene.preempted} == {
            Yield.SWAP if swapping else Yield.RECOMPUTE
        }
        assert bool(scene.scheduler.tally.recomputed_tokens) != swapping
        copies = [copy for step in scene.steps for copy in step.copies]
        assert any(isinstance(copy, SwapOut) for copy in copies) == swapping
        assert any(isinstance(copy, SwapIn) for copy in copies) == swapping
        outputs.append([scene.tokens(rid, branch) for rid in range(3) for branch in range(n)])
    assert outputs[0] == outputs[1]
    assert outputs[0] == [unpressed(each, branch) for each in jobs for branch in range(n)]


def test_i3_a_victim_that_only_waits_for_its_last_token_is_not_copied() -> None:
    """I3: all it will ever compute is in flight; copying its blocks out would be for nothing."""
    scene = world(
        6,
        job(8, 8, 0),
        job(7, 2, 1),
        steps_in_flight=2,
        num_host_blocks=20,
        preemption_mode=PreemptionMode.SWAP,
    )
    scene.plan()
    scene.plan()
    last = scene.requests[1].sequences[0]
    assert (last.to_compute, last.pending) == (0, 2)
    assert scene.scheduler.rooms.victims.how(scene.requests[1]) is Yield.RECOMPUTE
    assert scene.scheduler.rooms.victims.how(scene.requests[0]) is Yield.SWAP
    scene.run()


def test_i3_a_victim_with_nothing_to_keep_does_not_count_as_short_of_host_room() -> None:
    """I3, I1: it would not have been swapped with all the host memory there is."""
    scene = world(
        6,
        job(8, 8, 0),
        job(7, 2, 1),
        steps_in_flight=2,
        num_host_blocks=1,
        preemption_mode=PreemptionMode.SWAP,
    )
    scene.plan()
    scene.plan()
    victims = scene.scheduler.rooms.victims
    assert victims.lacks_host_room(scene.requests[0])
    assert not victims.lacks_host_room(scene.requests[1])
    scene.run()
