"""F: priority, and the order of yielding."""

import pytest

from forebay.core.effects import Cause, JoinKind
from forebay.core.limits import Policy, PreemptionMode
from tests.cases.scenes import admissions, computed_by, job, joins, text, turns, unpressed, world
from tests.support.driver import Job, World

PRIORITY = {"policy": Policy.PRIORITY}


def ended_order(scene: World) -> list[int]:
    return [seq // 8 for seq in scene.ended]


def test_f1_a_victim_that_was_planned_in_this_step_leaves_no_trace() -> None:
    """F1 (vllm #23347): `bs=4 P=4`, L(pr=5, 8 tokens) gets its third block, then H(pr=0) comes.

    Right: L's token, budget and block are undone; H gets the whole budget of the step.
    """
    scene = world(4, job(7, 9, 0, priority=5), max_num_batched_tokens=8, max_num_seqs=2, **PRIORITY)
    turns(scene, 2)
    assert scene.requests[0].sequences[0].known == 9
    high = scene.submit(job(8, 4, 1, priority=0))
    step = scene.plan()
    assert step is not None
    assert [(event.request_id, event.cause) for event in step.preempted] == [(0, Cause.URGENT)]
    assert [leave.seq_id for leave in step.left] == [0]
    assert computed_by(step, scene) == {high: 8}
    assert (step.num_tokens, step.num_rows, step.grown) == (8, 1, [])
    assert scene.scheduler.gauges().blocks_free == 2
    scene.finish_step()
    scene.run()
    assert scene.tokens(0) == unpressed(job(7, 9, 0))


def test_f2_no_runner_misses_the_step_in_which_another_yields() -> None:
    """F2 (vllm #49097): A (3 blocks, in the middle of its prompt) yields to B; C must run too."""
    scene = world(
        5,
        job(12, 8, 0, priority=5),
        job(3, 8, 1, priority=0),
        job(2, 8, 2, priority=0),
        long_prefill_token_threshold=2,
        **PRIORITY,
    )
    turns(scene, 3)
    assert [len(scene.requests[rid].sequences[0].table.blocks) for rid in range(3)] == [3, 1, 1]
    step = scene.plan()
    assert step is not None
    assert [event.request_id for event in step.preempted] == [0]
    assert computed_by(step, scene) == {1: 1, 2: 1}
    scene.finish_step()
    scene.run()


def test_f3_a_more_urgent_request_takes_a_seat_at_once() -> None:
    """F3 (vllm #40004, #45561, #54530, #45692): S=1, L(pr=5, m=100) runs, H(pr=0) at t=2."""
    scene = world(40, job(4, 100, 0, priority=5), max_num_seqs=1, **PRIORITY)
    turns(scene, 2)
    high = scene.submit(job(4, 3, 1, priority=0))
    (step,) = turns(scene, 1)
    assert step is not None
    assert [(event.request_id, event.cause) for event in step.preempted] == [(0, Cause.URGENT)]
    assert joins(step) == [(high, JoinKind.NEW)]
    scene.run()
    assert ended_order(scene) == [high, 0]
    assert scene.requests[0].num_preemptions == 1


def test_f3_a_seat_is_taken_though_every_token_of_the_step_is_planned() -> None:
    """F3 where a step has as many tokens as seats: who yields gives back both."""
    runners = [job(4, 30, key, priority=5) for key in range(4)]
    scene = world(40, *runners, max_num_seqs=4, max_num_batched_tokens=4, **PRIORITY)
    turns(scene, 6)
    high = scene.submit(job(4, 2, 9, priority=0))
    step = scene.plan()
    assert step is not None
    assert [event.request_id for event in step.preempted] == [3]
    assert computed_by(step, scene) == {0: 1, 1: 1, 2: 1, high: 1}
    scene.finish_step()
    scene.run()


def test_f3_an_equal_never_evicts() -> None:
    """F3: only a strictly more urgent one may, or two equals would take turns."""
    scene = world(40, job(4, 30, 0, priority=5), max_num_seqs=1, **PRIORITY)
    turns(scene, 2)
    scene.submit(job(4, 3, 1, priority=5))
    scene.run()
    assert not scene.preempted
    assert ended_order(scene) == [0, 1]


def test_f3_nobody_yields_for_a_request_that_fails_another_test() -> None:
    """F3: the victim is chosen only once all else is there. Without chunks H's prompt does not
    fit what decoders leave of the step, so evicting would be in vain."""
    scene = world(
        40,
        job(4, 6, 0, priority=-1),
        job(4, 30, 1, priority=5),
        max_num_seqs=2,
        max_num_batched_tokens=8,
        chunked_prefill=False,
        **PRIORITY,
    )
    turns(scene, 2)
    high = scene.submit(job(8, 3, 2, priority=0))
    turns(scene, 3)
    assert not scene.preempted
    assert not admissions(scene.steps, high)
    scene.abort(1)
    scene.run()


def test_f4_a_more_urgent_request_takes_blocks_at_once() -> None:
    """F4 (sglang #15249): P=4, L uses 4, H needs 2: running out of blocks preempts for priority."""
    scene = world(4, job(14, 3, 0, priority=5), **PRIORITY)
    turns(scene, 1)
    assert scene.scheduler.gauges().blocks_free == 0
    high = scene.submit(job(8, 1, 1, priority=0))
    (step,) = turns(scene, 1)
    assert step is not None
    assert [(event.request_id, event.cause) for event in step.preempted] == [(0, Cause.URGENT)]
    assert joins(step) == [(high, JoinKind.NEW)]
    scene.run()


def test_f4_of_the_less_urgent_only_as_many_yield_as_are_needed() -> None:
    """F4: the worst first, equals and more urgent ones never."""
    scene = world(
        8,
        job(7, 3, 0, priority=0),
        job(7, 3, 1, priority=1),
        job(7, 3, 2, priority=7),
        job(7, 3, 3, priority=5),
        **PRIORITY,
    )
    turns(scene, 1)
    scene.submit(job(12, 2, 4, priority=1))
    (step,) = turns(scene, 1)
    assert step is not None
    assert [event.request_id for event in step.preempted] == [2, 3]
    scene.run()


def test_f4_nobody_yields_in_vain_when_hits_lose_their_last_holder() -> None:
    """F4: what H hits in the table of the victim costs blocks once the victim has let go.

    Then the next yields too, in the same step, and H starts in it.
    """
    scene = world(
        6,
        job(8, 9, 0, priority=5),
        Job(text(8, 1), 9, priority=5),
        prefix_caching=True,
        **PRIORITY,
    )
    turns(scene, 2)
    high = scene.submit(Job(text(8, 1) + text(8, 3), 2, priority=0))
    (step,) = turns(scene, 1)
    assert step is not None
    assert [event.request_id for event in step.preempted] == [1, 0]
    assert [(join.seq_id // 8, join.num_computed) for join in step.joined] == [(high, 8)]
    scene.run()


@pytest.mark.parametrize("share", [0.75, 1.0])
def test_f4_a_more_urgent_request_does_not_wait_for_the_outlook_of_others(share: float) -> None:
    """F4: the pool will fill soon, but then the less urgent will yield; H starts at once."""
    scene = world(8, job(16, 16, 0, priority=5), expected_output_share=share, **PRIORITY)
    turns(scene, 2)
    assert scene.scheduler.gauges().blocks_free == 3
    high = scene.submit(job(8, 15, 1, priority=0))
    turns(scene, 1)
    assert admissions(scene.steps, high) == [3]
    scene.run()


def test_f4_a_more_urgent_request_does_not_wait_for_the_watermark() -> None:
    """F4: head-room is kept for the growth of peers, not against somebody more urgent."""
    scene = world(8, job(15, 18, 0, priority=5), watermark=0.5, **PRIORITY)
    turns(scene, 2)
    high = scene.submit(job(8, 15, 1, priority=0))
    turns(scene, 1)
    assert admissions(scene.steps, high) == [3]
    scene.run()


def test_f5_preempted_requests_keep_their_place_and_do_not_swap_turns() -> None:
    """F5 (vllm #41951, #51574): one total order for admission and for yielding.

    A and B have equal priority and the pool fits one to its end. Right: the newer yields once,
    waits for its turn, and newcomers come after it.
    """
    scene = world(4, job(7, 9, 0), job(7, 9, 1))
    turns(scene, 2)
    newcomer = scene.submit(job(4, 1, 2))
    turns(scene, 50)
    assert [event.request_id for event in scene.preempted] == [1]
    back = [rid for step in scene.steps[1:] for rid, _ in joins(step)]
    assert back == [1, newcomer]
    scene.run()
    assert ended_order(scene)[0] == 0


def test_f5_who_returns_first_yields_last() -> None:
    """F5: three yield; they come back in the order opposite to that in which they yielded."""
    scene = world(9, *(job(7, 29, key) for key in range(4)), max_preemption_lead=99)
    scene.run()
    victims = [event.request_id for event in scene.preempted]
    assert victims[:3] == [3, 2, 1]
    back = [admissions(scene.steps, rid)[1] for rid in (1, 2, 3)]
    assert back == sorted(back)
    assert ended_order(scene) == [0, 1, 2, 3]


@pytest.mark.parametrize("mode", [PreemptionMode.RECOMPUTE, PreemptionMode.SWAP])
def test_f6_priority_acts_and_can_be_seen(mode: PreemptionMode) -> None:
    """F6 (vllm #9342, #9272): it crashed, or did nothing unless blocks ran out.

    With room for one at a time: under `priority` the urgent one overtakes the queue and the
    runner; under `fcfs` the same number changes nothing.
    """
    ended = {}
    for policy in Policy:
        scene = world(16, max_num_seqs=1, policy=policy, preemption_mode=mode, num_host_blocks=9)
        for key, priority in enumerate([3, 4, 2, 2, 0]):
            scene.submit(job(4, 6, key, priority=priority))
            scene.turn()
        scene.run()
        ended[policy] = ended_order(scene)
        assert bool(scene.preempted) == (policy is Policy.PRIORITY)
    assert ended == {Policy.PRIORITY: [4, 2, 3, 0, 1], Policy.FCFS: [0, 1, 2, 3, 4]}


@pytest.mark.parametrize(("prompt", "step_of_need"), [(7, 3), (8, 2), (5, 5)])
def test_f7_preemption_comes_with_the_step_that_crosses_the_block_boundary(
    prompt: int, step_of_need: int
) -> None:
    """F7 (vllm #37051): the old test asserted what never happened.

    Two runners fill P=4. Not before the step that writes token 8 does anybody yield, and then
    the newer does.
    """
    scene = world(4, job(prompt, 6, 0), job(prompt, 6, 1))
    steps = [step for step in turns(scene, step_of_need) if step is not None]
    assert [len(step.preempted) for step in steps] == [0] * (step_of_need - 1) + [1]
    assert scene.preempted[0].request_id == 1
    assert scene.preempted[0].cause is Cause.BLOCKS
    assert scene.preempted[0].num_tokens == 8
    scene.run()


def test_f3_an_urgent_request_takes_the_budget_of_a_less_urgent_prompt() -> None:
    """F3 in tokens: B=16, L(pr=5, p=160) fills every step with its prompt, H(pr=0) arrives.

    Right: H runs in the next step; L's chunk waits, its blocks and progress untouched.
    """
    scene = world(60, job(160, 4, 0, priority=5), max_num_batched_tokens=16, **PRIORITY)
    turns(scene, 2)
    high = scene.submit(job(8, 4, 1, priority=0))
    step = scene.plan()
    assert step is not None
    assert computed_by(step, scene) == {high: 8}
    assert step.preempted == []
    assert scene.requests[0].sequences[0].computed == 32
    scene.finish_step()
    step = scene.turn()
    assert step is not None
    assert [(chunk.seq_id, chunk.num_tokens) for chunk in step.chunks] == [(0, 15)]
    scene.run()


def test_equals_do_not_take_each_others_budget() -> None:
    """F3: with equal priority the prompt goes on and the newcomer waits for what it leaves."""
    scene = world(60, job(160, 4, 0, priority=5), max_num_batched_tokens=16, **PRIORITY)
    turns(scene, 2)
    scene.submit(job(8, 4, 1, priority=5))
    step = scene.turn()
    assert step is not None
    assert [(chunk.seq_id, chunk.num_tokens) for chunk in step.chunks] == [(0, 16)]
    scene.run()
