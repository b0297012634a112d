"""Random workloads under the presets that are not ours: nothing lost, nothing leaked, no stall."""

import os
import random
from dataclasses import replace

import pytest

from forebay.core.lifecycle import Swapped
from forebay.core.limits import Fencing, Limits
from forebay.core.policies import GrowthCheck, SwapInSize
from forebay.core.presets import no_evict, ratio, vllm_v0
from forebay.core.three_queues import ThreeQueues
from tests.support.driver import World, play, random_jobs, random_limits
from tests.support.loading import loading_jobs, random_throttle

NUM_WORKLOADS = int(os.environ.get("FOREBAY_RANDOM_WORKLOADS", "2400")) // 4
CHUNKS = 8
MOST_TURNS = 600


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
        throttle: tuple[bool, ...] = ()
        if preset != "vllm_v0" and at // CHUNKS % 2:  # V0 knows neither loads nor throttle
            limits = replace(limits, fencing=Fencing.IN_FLIGHT)
            jobs, throttle = loading_jobs(rng, len(jobs)), random_throttle(rng)
        try:
            check(play(limits, jobs, throttle=throttle))
        except Exception as error:
            raise AssertionError(f"workload {first + at}: {limits}\n{error!r}") from error


def exact_v0_limits(rng: random.Random) -> Limits:
    return vllm_v0(random_limits(rng), delay_factor=rng.choice([0.0, 0.5, 3.0]))


def waits_for_ever(world: World) -> bool:
    """The three ways in which the reference never ends: all at the head, with nobody else to go."""
    limits, queues = world.limits, world.scheduler.rooms.queues
    assert isinstance(queues, ThreeQueues)
    for head in queues.swapped[:1]:
        assert isinstance(head.state, Swapped)
        needed = len(head.state.host.slots) + len(head.live)
        too_much = sum(seq.to_compute for seq in head.live) > limits.max_num_batched_tokens
        if too_much or needed > limits.num_blocks - limits.watermark_blocks:
            return True
    head = [*queues.running, *queues.queued][0]
    fills_the_pool = limits.blocks_for(head.live[0].known) == limits.num_blocks
    return limits.chunked_prefill and fills_the_pool


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_v0_as_it_is_ends_but_for_three_known_ways_to_wait_for_ever(chunk: int) -> None:
    first = int(os.environ.get("FOREBAY_RANDOM_SEED", "0"))
    for at in range(chunk, NUM_WORKLOADS // 3, CHUNKS):
        rng = random.Random(first + at)
        world = World(exact_v0_limits(rng))
        jobs = sorted(random_jobs(rng, rng.randint(1, 12)), key=lambda job: job.at)
        for job in jobs:
            while world.now < job.at:
                world.turn()
            world.submit(job)
        while world.scheduler.has_work and world.now < MOST_TURNS:
            world.turn()
        if world.scheduler.has_work:
            assert waits_for_ever(world), f"workload {first + at}: {world.limits}"
            for rid in list(world.scheduler.requests):
                world.abort(rid)
        world.run()
