"""A fast seeded driver: thousands of random workloads on tiny pools, audited after every call."""

import os
import random

import pytest

from tests.support.driver import play, random_workload

NUM_WORKLOADS = int(os.environ.get("FOREBAY_RANDOM_WORKLOADS", "2016"))
CHUNKS = 24


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_every_request_ends_once_and_nothing_leaks(chunk: int) -> None:
    first = int(os.environ.get("FOREBAY_RANDOM_SEED", "0"))
    for at in range(chunk, NUM_WORKLOADS, CHUNKS):
        limits, jobs = random_workload(random.Random(first + at))
        try:
            play(limits, jobs)
        except Exception as error:
            raise AssertionError(f"workload {first + at}: {limits}\n{error!r}") from error
