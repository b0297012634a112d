"""Exactness beside the large matrix: small budgets, other block sizes, refusals, priorities."""

import random
from typing import Any

import pytest

from tests.exactness.mixed import PLENTY, Mixed, Opener
from tests.exactness.test_matrix import MODES, assert_pressure
from tests.exactness.workload import largest_logprob_difference, together

SETTINGS: dict[str, dict[str, Any]] = {
    "tiny_budget": {"max_num_batched_tokens": 6, "max_num_seqs": 6},
    "small_chunks": {"long_prefill_token_threshold": 3},
    "whole_prompts": {"enable_chunked_prefill": False, "max_num_batched_tokens": 256},
    "one_step_prefill": {"max_num_batched_tokens": 2048},
    "few_seats": {"max_num_seqs": 5},
    "watermark": {"watermark": 0.2},
    "look_ahead": {"expected_output_share": 0.75},
    "strict_turns": {"max_preemption_lead": 1},
    "two_threads": {"num_threads": 2},
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", SETTINGS)
def test_no_setting_changes_an_output(
    name: str, mode: str, mixed: Mixed, open_tiny: Opener
) -> None:
    settings = {
        "num_gpu_blocks_override": mixed.largest() if name == "few_seats" else mixed.share(4),
        "preemption_mode": mode,
        "steps_in_flight": 2,
        **SETTINGS[name],
    }
    with open_tiny(**settings) as llm:
        assert_pressure(mixed.check(llm), mode)
        mixed.check_backwards(llm)


@pytest.mark.parametrize("cache", [True, False], ids=["cache", "no_cache"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("block_size", [1, 3, 16])
def test_no_block_size_changes_an_output(
    block_size: int, mode: str, cache: bool, mixed: Mixed, open_tiny: Opener
) -> None:
    settings = {
        "num_gpu_blocks_override": mixed.largest(block_size) * 3 // 2,
        "block_size": block_size,
        "preemption_mode": mode,
        "enable_prefix_caching": cache,
        "steps_in_flight": 2,
    }
    with open_tiny(**settings) as llm:
        assert_pressure(mixed.check(llm), mode)


@pytest.mark.parametrize("pool", ["infinite", "third"])
@pytest.mark.parametrize("steps", [1, 2, 3])
@pytest.mark.parametrize("mode", MODES)
def test_no_artificial_refusal_changes_an_output(
    mode: str, steps: int, pool: str, mixed: Mixed, open_tiny: Opener
) -> None:
    settings = {
        "num_gpu_blocks_override": PLENTY if pool == "infinite" else mixed.share(3),
        "preemption_mode": mode,
        "steps_in_flight": steps,
        "artificial_preemption": True,
        "artificial_preemption_seed": steps,
    }
    with open_tiny(**settings) as llm:
        tally = mixed.check(llm)
        assert tally.artificial_refusals > 20
        assert_pressure(tally, mode)


@pytest.mark.parametrize("steps", [1, 2, 3])
@pytest.mark.parametrize("mode", ["swap", "auto"])
def test_a_swap_pool_too_small_for_all_changes_no_output(
    mode: str, steps: int, mixed: Mixed, open_tiny: Opener
) -> None:
    block_gib = 4 * 3 * 2 * 2 * 16 * 4 / 2**30  # tokens, layers, K and V, heads, size, bytes
    settings = {
        "num_gpu_blocks_override": mixed.share(3),
        "preemption_mode": mode,
        "steps_in_flight": steps,
        "swap_space": 12.5 * block_gib,
    }
    with open_tiny(**settings) as llm:
        assert llm.startup.memory.num_host_blocks == 12
        tally = mixed.check(llm)
        assert tally.swaps_without_room > 0
        assert tally.preemptions_recompute > 0
        assert tally.preemptions_swap > 0


@pytest.mark.parametrize("steps", [1, 2, 3])
@pytest.mark.parametrize("mode", MODES)
def test_no_mix_of_priorities_changes_an_output(
    mode: str, steps: int, mixed: Mixed, open_tiny: Opener
) -> None:
    settings = {
        "num_gpu_blocks_override": mixed.share(3),
        "preemption_mode": mode,
        "steps_in_flight": steps,
        "scheduling_policy": "priority",
        "max_num_seqs": 8,
    }
    draw = random.Random(steps)
    with open_tiny(**settings) as llm:
        for _ in range(2):
            priority = [draw.randrange(3) for _ in mixed.requests]
            tally = mixed.check(llm, priority=priority)
        assert_pressure(tally, mode)


def test_logprobs_are_the_same_to_the_last_bit(mixed: Mixed, open_tiny: Opener) -> None:
    """Not merely close: what is computed for a row does not depend on its neighbours at all."""
    settings = {"num_gpu_blocks_override": mixed.share(3), "preemption_mode": "recompute"}
    with open_tiny(**settings) as llm:
        if "NOT" in llm.startup.products:
            pytest.skip(f"this machine: {llm.startup.products}")
        found = together(llm, mixed.requests)
        assert largest_logprob_difference(found, mixed.expected) == 0.0
