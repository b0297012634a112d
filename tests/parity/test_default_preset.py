"""Forebay's own loop runs the recorded scenarios: nothing lost, nothing stuck, less recomputed."""

from dataclasses import replace
from pathlib import Path

import pytest

from forebay.core.audit import audit
from forebay.core.limits import Fencing, Limits
from forebay.parity.scenario import read_scenario
from forebay.parity.vllm_v1 import PresetOf, VllmV1Replay, as_vllm_v1
from tests.support.scenarios import families

FAMILIES = families("vllm-v1")


def as_forebay(sizes: Limits, has_store: bool) -> Limits:
    """Loads run beside the steps, so frees wait for steps in flight."""
    return replace(sizes, fencing=Fencing.IN_FLIGHT if has_store else Fencing.OFF)


def recomputed(path: Path, preset: PresetOf) -> int:
    """Tokens computed again in one scenario, which ends with nothing held."""
    scenario = read_scenario(path)
    replay = VllmV1Replay(scenario, preset)
    most = 3 * len(scenario.items("steps"))
    for at, _ in enumerate(replay.steps()):
        faults = audit(replay.scheduler)
        assert not faults, f"{path.name}, step {at}: {faults}"
        assert at < most, f"{path.name} does not come to an end"
    gauges = replay.scheduler.gauges()
    assert gauges.blocks_active == gauges.blocks_fenced == 0
    tally = replay.scheduler.tally
    assert tally.requests_ended == len(scenario.items("requests"))
    return tally.recomputed_tokens


@pytest.mark.parametrize("family", FAMILIES)
def test_nothing_is_lost_and_no_more_is_recomputed(family: str) -> None:
    ours = sum(recomputed(path, as_forebay) for path in FAMILIES[family])
    if "priority" not in family:
        assert ours <= sum(recomputed(path, as_vllm_v1) for path in FAMILIES[family])
