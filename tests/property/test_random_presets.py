"""Random workloads under the presets that are not ours: nothing lost, nothing leaked, no stall."""

import os
import random
from dataclasses import replace

import pytest

from forebay.core.limits import Limits
from forebay.core.policies import GrowthCheck, SwapInSize
from forebay.core.presets import no_evict, ratio, vllm_v0
from tests.support.driver import World, play, random_jobs, random_limits

NUM_WORKLOADS = int(os.environ.get("FOREBAY_RANDOM_WORKLOADS", "2400")) // 4
CHUNKS = 8


def v0_limits(rng: random.Random) -> Limits:
    """V0 as it is, but for its two ways to wait for ever: they are told apart below."""
    limits = vllm_v0(random_limits(rng), delay_factor=rng.choice([0.0, 0.0, 0.5, 3.0]))
    rules = replace(limits.rules, swap_in_size=SwapInSize.CHUNK, growth=GrowthCheck.MISSING)
    return replace(limits, rules=rules, watermark=0.0)


def no_evict_limits(rng: random.Random) -> Limits:
    return no_evict(random_limits(rng))


def ratio_limits(rng: random.Random) -> Limits:
    return ratio(random_limits(rng), conservativeness=rng.choice([0.3, 1.0, 1.3]))


def check_no_evict(world: World) -> None:
    assert world.preempted == []
    assert world.scheduler.tally.recomputed_tokens == 0


def check_nothing(world: World) -> None:
    """`play` has compared every output with that of a run without pressure."""


PRESETS = {
    "vllm_v0": (v0_limits, check_nothing),
    "no_evict": (no_evict_limits, check_no_evict),
    "ratio": (ratio_limits, check_nothing),
}


@pytest.mark.parametrize("chunk", range(CHUNKS))
@pytest.mark.parametrize("preset", PRESETS)
def test_every_request_ends_once_and_nothing_leaks(preset: str, chunk: int) -> None:
    make_limits, check = PRESETS[preset]
    first = int(os.environ.get("FOREBAY_RANDOM_SEED", "0"))
    for at in range(chunk, NUM_WORKLOADS, CHUNKS):
        rng = random.Random(first + at)
        limits = make_limits(rng)
        jobs = random_jobs(rng, rng.randint(1, 12))
        try:
            check(play(limits, jobs))
        except Exception as error:
            raise AssertionError(f"workload {first + at}: {limits}\n{error!r}") from error
