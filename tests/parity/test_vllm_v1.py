"""The `vllm-v1` preset decides as vLLM 0.25.1's V1 scheduler did: every recorded field."""

from pathlib import Path
from typing import Any

import pytest

from forebay.parity.kinds import KINDS
from forebay.parity.replay import replay_file
from tests.support.scenarios import altered, families

FAMILIES = families("vllm-v1")
A_LOAD = FAMILIES["loads_fence"][1]
FLIPPED = {
    "scheduled": lambda value: [*value, ["r0", 1]],
    "start": lambda value: {**value, "r0": 4},
    "capacity_bound": lambda value: not value,
    **dict.fromkeys(
        ("free_blocks", "reserved", "fenced_blocks", "in_flight", "free_blocks_after"),
        lambda value: value + 1,
    ),
    **dict.fromkeys(
        ("new", "resumed", "preempted", "running", "waiting", "load_started", "parked"),
        lambda value: [*value, "r0"],
    ),
    **dict.fromkeys(("load_done", "finished"), lambda value: [*value, "r0"]),
}


def test_all_scenarios_are_there() -> None:
    assert len(FAMILIES) == 26
    assert sum(map(len, FAMILIES.values())) == 144


@pytest.mark.parametrize("family", FAMILIES)
def test_every_recorded_field_is_met(family: str) -> None:
    outcomes = [replay_file(path, KINDS) for path in FAMILIES[family]]
    faults = [f"{outcome.path.name}: {outcome.fault}" for outcome in outcomes if outcome.fault]
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize("field", FLIPPED)
def test_a_flipped_field_is_found(field: str, tmp_path: Path) -> None:
    def flip(scenario: Any) -> None:
        fields = scenario["steps"][40]
        fields[field] = FLIPPED[field](fields[field])

    fault = replay_file(altered(A_LOAD, tmp_path, flip), KINDS).fault
    assert fault is not None
    assert fault.startswith(f"step 40, {field}: recorded ")
    assert ", replayed " in fault


@pytest.mark.parametrize(
    ("alter", "said"),
    [
        (lambda s: s["steps"].pop(), "whole run, number of steps"),
        (lambda s: s["steps"].append(s["steps"][-1]), "whole run, number of steps"),
        (lambda s: s.update(preemptions=99), "whole run, preemptions: recorded 99"),
        (lambda s: s.update(finished_all=False), "whole run, finished_all"),
        (lambda s: s["steps"][3].pop("running"), "steps[3] lacks 'running'"),
        (lambda s: s["steps"][3].update(mood=1), "a field 'mood' that no replay has"),
        (lambda s: s.update(steps=[]), "has no steps"),
        (lambda s: s.update(steps=7), "steps is 7; it must be a list"),
        (lambda s: s.update(reference="vllm 9"), "of no kind that can be replayed"),
        (lambda s: s.pop("reference"), "lacks 'reference'"),
        (lambda s: s["config"].pop("policy"), "config lacks 'policy'"),
        (lambda s: s["config"].update(policy="lottery"), "it must be fcfs or priority"),
        (lambda s: s["config"].update(usable_blocks=0), "a whole number of at least 1"),
        (lambda s: s["config"].update(block_size=True), "block_size is true"),
        (lambda s: s["config"].update(watermark="much"), 'watermark is "much"'),
        (lambda s: s["config"].update(prefix_caching=2), "it must be true or false"),
        (lambda s: s["requests"].append(s["requests"][0]), "two requests have the same id"),
        (lambda s: s["requests"].append("r99"), "it must be an object"),
        (lambda s: s["requests"][0].update(prompt=[]), "request r0: the prompt is empty"),
        (lambda s: s["requests"][0].update(prompt=["a"]), "a list of whole numbers"),
        (lambda s: s["requests"][0].update(prompt=[1 << 40]), "more than 32 bits"),
        (lambda s: s["requests"][0].update(max_tokens=0), "request r0: max_tokens is 0"),
        (lambda s: s["requests"][1].update(external_tokens=10**6), "external_tokens is 1000000"),
    ],
)
def test_a_malformed_scenario_fails_with_a_clear_line(
    alter: Any, said: str, tmp_path: Path
) -> None:
    fault = replay_file(altered(A_LOAD, tmp_path, alter), KINDS).fault
    assert fault is not None
    assert said in fault
    assert "\n" not in fault
