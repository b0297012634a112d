"""Whatever the pool, the mode, the steps in flight and the cache: the outputs are the same."""

import pytest

from forebay.core.gauges import Tally
from tests.exactness.mixed import PLENTY, Mixed, Opener

MODES = ("recompute", "swap", "auto")


def _pool(mixed: Mixed, name: str) -> int:
    match name:
        case "half":
            return mixed.share(2)
        case "third":
            return mixed.share(3)
        case "one_request":
            return mixed.largest()
    return PLENTY


def assert_pressure(tally: Tally, mode: str) -> None:
    """Requests were preempted, in the way that `mode` says."""
    if mode == "recompute":
        assert tally.preemptions_recompute > 0
        assert tally.recomputed_tokens > 0
        assert tally.preemptions_swap == 0
    elif mode == "swap":
        assert tally.preemptions_swap > 0
        assert tally.swapped_in_blocks > 0
    else:
        assert tally.preemptions_recompute + tally.preemptions_swap > 0


@pytest.mark.parametrize("cache", [True, False], ids=["cache", "no_cache"])
@pytest.mark.parametrize("steps", [1, 2, 3])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("pool", ["infinite", "half", "third", "one_request"])
def test_outputs_are_those_of_each_request_alone(
    pool: str, mode: str, steps: int, cache: bool, mixed: Mixed, open_tiny: Opener
) -> None:
    settings = {
        "num_gpu_blocks_override": _pool(mixed, pool),
        "max_model_len": mixed.longest,
        "preemption_mode": mode,
        "steps_in_flight": steps,
        "enable_prefix_caching": cache,
    }
    with open_tiny(**settings) as llm:
        tally = mixed.check(llm)
        if pool == "infinite":
            assert tally.preemptions_recompute + tally.preemptions_swap == 0
        else:
            assert_pressure(tally, mode)
        if cache:
            tally = mixed.check_backwards(llm)
        assert (tally.cached_prompt_tokens > 0) == cache


def test_the_workload_is_a_mixed_one(mixed: Mixed) -> None:
    """The comparison means something: outputs end in all ways, and none is a repetition."""
    ends = {one.finish_reason for output in mixed.expected for one in output.outputs}
    assert ends == {"stop", "length"}
    reasons = [one.stop_reason for output in mixed.expected for one in output.outputs]
    assert {type(reason) for reason in reasons} == {str, int, type(None)}
    by_name = dict(zip((one.name for one in mixed.requests), mixed.expected, strict=True))
    [own_end] = by_name["own_end"].outputs
    assert (own_end.finish_reason, own_end.stop_reason) == ("stop", None)
    [late] = by_name["min_tokens"].outputs
    assert len(late.token_ids) > 12
    group = by_name["min_p_group"].outputs
    assert len({tuple(one.token_ids) for one in group}) == 3
    for name in ("greedy", "greedy_shared", "temperature", "penalised"):
        [one] = by_name[name].outputs
        assert len(set(one.token_ids)) > 20
