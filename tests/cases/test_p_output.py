"""P: output lost or changed by preemption."""

import itertools

import pytest

from forebay.core.events import FinishReason
from forebay.core.limits import Fencing, Limits, Policy, PreemptionMode
from tests.cases.scenes import job
from tests.support.driver import World

WAYS = list(
    itertools.product(
        [False, True],
        list(Policy),
        [PreemptionMode.RECOMPUTE, PreemptionMode.SWAP, PreemptionMode.AUTO],
        [1, 2, 3],
        list(Fencing),
    )
)


@pytest.mark.parametrize("stop_every", [0, 5])
def test_p1_output_is_that_of_a_run_with_an_endless_pool(stop_every: int) -> None:
    """P1 (vllm #16832; FastDeploy #3080): resume replayed only the prompt; outputs came back short.

    `bs=4 P=5`, A and B `(p=6, m=10)`, for every policy, mode, number of steps in flight, fence,
    with prefix cache and without. Right: tokens, finish reason and usage of a run with P = 1000.
    """
    free = outcome(Limits(num_blocks=1000, block_size=4), stop_every)
    assert not free.preempted
    for caching, policy, mode, depth, fencing in WAYS:
        pressed = outcome(
            Limits(
                num_blocks=5,
                block_size=4,
                num_host_blocks=4,
                prefix_caching=caching,
                policy=policy,
                preemption_mode=mode,
                steps_in_flight=depth,
                fencing=fencing,
                expected_output_share=0.0,
            ),
            stop_every,
        )
        assert pressed.preempted or stop_every
        for rid in (0, 1):
            assert pressed.tokens(rid) == free.tokens(rid)
            assert pressed.reason(rid) is free.reason(rid)
            assert pressed.ended[rid * 8].num_output == free.ended[rid * 8].num_output
    assert {free.reason(rid) for rid in (0, 1)} == {
        FinishReason.STOP if stop_every else FinishReason.LENGTH
    }


def outcome(limits: Limits, stop_every: int) -> World:
    scene = World(limits)
    for key in range(2):
        scene.submit(job(6, 10, key, priority=key, stop_every=stop_every))
    scene.run()
    return scene
