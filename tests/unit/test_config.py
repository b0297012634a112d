import dataclasses
import re

import pytest

from forebay.config import EngineConfig
from forebay.errors import ConfigError
from tests.layers.source import ROOT

FIELDS = {field.name: field for field in dataclasses.fields(EngineConfig)}


def faults_of(**settings: object) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        EngineConfig.from_settings(settings)
    return str(caught.value).splitlines()


def test_the_defaults_are_sound() -> None:
    EngineConfig().check()


def test_every_fault_is_reported_at_once() -> None:
    faults = faults_of(max_num_seqs=0, device="tpu", watermark=1.5, steps_in_flight=4, block_size=0)
    assert len(faults) == 5
    for name in ("max_num_seqs", "device", "watermark", "steps_in_flight", "block_size"):
        assert any(fault.startswith(name) for fault in faults)


def test_faults_of_all_kinds_are_reported_at_once() -> None:
    faults = faults_of(
        kv_token=3,
        block_size=0,
        kv_tokens=5,
        max_num_seqs=100,
        max_num_batched_tokens=50,
        dtype="float16",
    )
    assert [fault.split()[0] for fault in faults] == [
        *("unknown", "block_size", "max_num_batched_tokens", 'dtype="float16"')
    ]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_model_len", 1),
        ("max_model_len", 0),
        ("max_model_len", "long"),
        ("max_num_batched_tokens", 0),
        ("max_num_seqs", True),
        ("block_size", 2048),
        ("kv_tokens", -1),
        ("swap_space", -0.5),
        ("gpu_memory_utilization", 0),
        ("preemption_mode", "abort"),
        ("scheduling_policy", "lifo"),
        ("enable_prefix_caching", "yes"),
        ("artificial_preemption_probability", 1.1),
        ("dtype", "int8"),
        ("seed", -1),
        ("seed", 2**64),
        ("model", 7),
        ("num_threads", 0),
    ],
)
def test_a_value_out_of_range_names_its_setting(name: str, value: object) -> None:
    [fault] = faults_of(**{name: value})
    assert fault.startswith(name)
    assert repr(value) in fault


def test_an_unknown_setting_suggests_the_nearest() -> None:
    [fault] = faults_of(max_num_seq=3)
    assert "did you mean max_num_seqs" in fault


def test_i2_swap_without_host_memory_is_refused() -> None:
    [fault] = faults_of(preemption_mode="swap", swap_space=0)
    assert "swap_space" in fault
    EngineConfig.from_settings({"preemption_mode": "auto", "swap_space": 0})


def test_g8_a_chunk_is_never_larger_than_a_step() -> None:
    config = EngineConfig(max_num_batched_tokens=256, long_prefill_token_threshold=1000)
    assert config.chunk_limit == 256
    assert EngineConfig(long_prefill_token_threshold=100).chunk_limit == 100
    assert EngineConfig(max_num_batched_tokens=512).chunk_limit == 512


def test_whole_prompts_must_fit_a_step() -> None:
    whole = {"enable_chunked_prefill": False, "max_num_batched_tokens": 512}
    [fault] = faults_of(**whole, max_model_len=1024)
    assert "max_num_batched_tokens" in fault
    EngineConfig.from_settings({**whole, "max_model_len": 512})


def test_a_step_has_a_token_for_each_sequence() -> None:
    [fault] = faults_of(max_num_seqs=100, max_num_batched_tokens=99)
    assert "max_num_seqs" in fault


def test_the_pool_is_sized_in_one_way() -> None:
    [fault] = faults_of(kv_tokens=100, num_gpu_blocks_override=10)
    assert "num_gpu_blocks_override and kv_tokens" in fault
    [fault] = faults_of(kv_tokens=15)
    assert "one block" in fault


def reference_rows() -> dict[str, list[str]]:
    text = (ROOT / "docs" / "reference" / "settings.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \|(.*)\|$", text, re.MULTILINE)
    return {name: [cell.strip() for cell in rest.split(" | ")] for name, rest in rows}


def test_the_reference_lists_every_setting_and_no_other() -> None:
    assert list(reference_rows()) == list(FIELDS)


@pytest.mark.parametrize("name", FIELDS)
def test_the_reference_gives_the_default_unit_meaning_and_source(name: str) -> None:
    default, unit, meaning, source = reference_rows()[name]
    assert default == f"`{FIELDS[name].default!r}`".replace("'", '"')
    assert unit
    assert meaning
    assert source
