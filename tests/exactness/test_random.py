"""Engines with settings drawn at random: whatever the mixture, the outputs are the same."""

import random
from typing import Any

import pytest

from tests.exactness.mixed import Mixed, Opener
from tests.exactness.test_matrix import MODES

_NUM_ENGINES = 12
_HOST_BLOCK_GIB = 3 * 2 * 2 * 16 * 4 / 2**30  # a block of one token: layers, K and V, heads, ...


def random_settings(draw: random.Random, mixed: Mixed) -> dict[str, Any]:
    """Settings that suit the workload. All that `EngineConfig` lets one combine may come."""
    block_size = draw.choice([1, 2, 4, 5, 8, 16])
    largest = mixed.largest(block_size)
    most = max(largest, mixed.peak_blocks * 4 // block_size)
    mode = draw.choice(MODES)
    settings = {
        "block_size": block_size,
        "num_gpu_blocks_override": min(draw.randint(largest, most) for _ in range(3)),
        "preemption_mode": mode,
        "steps_in_flight": draw.randint(1, 3),
        "enable_prefix_caching": draw.random() < 0.7,
        "max_num_seqs": draw.choice([3, 6, 12, 32]),
        "scheduling_policy": draw.choice(["fcfs", "priority"]),
        "watermark": draw.choice([0.0, 0.0, 0.1]),
        "expected_output_share": draw.choice([0.0, 0.0, 0.75]),
        "max_preemption_lead": draw.choice([1, 3]),
        "artificial_preemption": draw.random() < 0.4,
        "artificial_preemption_probability": draw.choice([0.1, 0.5, 0.9]),
        "artificial_preemption_seed": draw.randrange(1000),
        "num_threads": draw.choice([1, 1, 2]),
    }
    if mode != "recompute":
        num_host_tokens = draw.choice([50, 100, 400, 2000])
        settings["swap_space"] = num_host_tokens * _HOST_BLOCK_GIB
    if draw.random() < 0.2:
        return {**settings, "enable_chunked_prefill": False, "max_num_batched_tokens": 512}
    budget = draw.choice([32, 40, 100, 2048])
    return {
        **settings,
        "max_num_batched_tokens": budget,
        "long_prefill_token_threshold": draw.choice([0, 0, 3, 17]),
    }


@pytest.mark.parametrize("seed", range(_NUM_ENGINES))
def test_no_mixture_of_settings_changes_an_output(
    seed: int, mixed: Mixed, open_tiny: Opener
) -> None:
    draw = random.Random(seed)
    settings = random_settings(draw, mixed)
    with open_tiny(**settings) as llm:
        for _ in range(2):
            order = draw.sample(range(len(mixed.requests)), len(mixed.requests))
            priority = [draw.randrange(3) for _ in order]
            mixed.check(llm, order=order, priority=priority)


def test_most_mixtures_preempt(mixed: Mixed, open_tiny: Opener) -> None:
    """The test above would show little if its pools were large."""
    num_preempting = 0
    for seed in range(_NUM_ENGINES):
        with open_tiny(**random_settings(random.Random(seed), mixed)) as llm:
            tally = mixed.check(llm)
            num_preempting += tally.preemptions_recompute + tally.preemptions_swap > 0
    assert num_preempting > _NUM_ENGINES // 2
