"""Random workloads of forebay's own loop with an external store and a prefill throttle."""

import os
import random
from dataclasses import replace

import pytest

from forebay.core.limits import Fencing
from tests.support.driver import play, random_limits
from tests.support.loading import loading_jobs, random_throttle

NUM_WORKLOADS = int(os.environ.get("FOREBAY_RANDOM_WORKLOADS", "800"))
CHUNKS = 8


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_every_request_ends_once_and_nothing_leaks(chunk: int) -> None:
    first = int(os.environ.get("FOREBAY_RANDOM_SEED", "0"))
    for at in range(chunk, NUM_WORKLOADS, CHUNKS):
        rng = random.Random(first + at)
        limits = replace(random_limits(rng), fencing=Fencing.IN_FLIGHT)
        jobs = loading_jobs(rng, rng.randint(1, 12))
        try:
            play(limits, jobs, throttle=random_throttle(rng))
        except Exception as error:
            raise AssertionError(f"workload {first + at}: {limits}\n{error!r}") from error
