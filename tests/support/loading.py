"""Random workloads with an external store, a prefill throttle and presets of references."""

import random
from dataclasses import replace

from forebay.core.limits import Fencing, Limits
from forebay.core.presets import vllm_v1
from tests.support.driver import Job, random_jobs, random_limits


def random_throttle(rng: random.Random) -> tuple[bool, ...]:
    """Flags used cyclically; none in half the workloads."""
    return tuple(rng.random() < 0.6 for _ in range(rng.choice([0, 0, 0, 2, 3, 7])))


def loading_jobs(rng: random.Random, count: int, n: int | None = None) -> list[Job]:
    """Random jobs, of which some are found in an external store; `n` replaces theirs."""
    jobs = []
    for job in random_jobs(rng, count):
        single = job if n is None else replace(job, n=n)
        if single.n == 1 and rng.random() < 0.5:
            prompt = len(single.prompt)
            single = replace(
                single,
                external=rng.choice([prompt, rng.randint(1, prompt), rng.randint(1, prompt)]),
                load_turns=rng.choice([0, 0, 1, 3, 9, -1, -4]),
            )
        jobs.append(single)
    return jobs


def vllm_v1_limits(rng: random.Random, *, external_store: bool) -> Limits:
    """The `vllm-v1` preset, as it is executed, over tiny pools. One or two steps in flight.

    As the reference demands at its start, the pool holds one request of `max_model_len`.
    """
    limits = random_limits(rng)
    limits = replace(
        limits,
        max_model_len=min(limits.max_model_len, limits.num_blocks * limits.block_size),
        steps_in_flight=rng.choice([1, 2, 2]),
        chunked_prefill=True,
        pressure=None,
        fencing=Fencing.OFF,
        reserve_full_prompt=rng.random() < 0.7,
    )
    return vllm_v1(limits, external_store=external_store, executed=True)
