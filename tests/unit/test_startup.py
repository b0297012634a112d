from pathlib import Path
from typing import Any

import pytest

from forebay import LLM, SamplingParams
from forebay.config import EngineConfig
from forebay.core.limits import Costs, Policy, PreemptionMode
from forebay.errors import CapacityError, ConfigError, ModelError
from forebay.host_memory import available_bytes
from forebay.memory_plan import MemoryPlan
from forebay.startup import find_tokenizer, limits_of
from tests.support.tiny_llm import save_tiny_llm

PLAN = MemoryPlan(
    num_blocks=50,
    num_host_blocks=20,
    block_size=8,
    max_model_len=128,
    block_bytes=1024,
    weights=1,
    activations=1,
)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_tiny_llm(tmp_path_factory.mktemp("model") / "tiny.gguf"))


def test_limits_are_settings_sizes_and_costs() -> None:
    config = EngineConfig(
        max_num_seqs=7,
        max_num_batched_tokens=100,
        long_prefill_token_threshold=500,
        watermark=0.25,
        scheduling_policy="priority",
        preemption_mode="swap",
        enable_prefix_caching=False,
        steps_in_flight=2,
        expected_output_share=0.5,
        max_preemption_lead=2,
        artificial_preemption=True,
        artificial_preemption_probability=0.1,
        artificial_preemption_max=9,
        artificial_preemption_seed=3,
    )
    costs = Costs(swap_ns_per_block=5)
    limits = limits_of(config, PLAN, costs)
    assert (limits.num_blocks, limits.num_host_blocks, limits.block_size) == (50, 20, 8)
    assert (limits.max_num_seqs, limits.max_num_batched_tokens) == (7, 100)
    assert (limits.max_model_len, limits.long_prefill_token_threshold) == (128, 100)
    assert (limits.watermark, limits.expected_output_share) == (0.25, 0.5)
    assert limits.policy is Policy.PRIORITY
    assert limits.preemption_mode is PreemptionMode.SWAP
    assert not limits.prefix_caching
    assert (limits.steps_in_flight, limits.max_preemption_lead) == (2, 2)
    assert limits.costs is costs
    assert limits.pressure is not None
    assert (limits.pressure.probability, limits.pressure.max_refusals) == (0.1, 9)
    assert limits.pressure.seed == 3
    assert limits_of(EngineConfig(), PLAN, costs).pressure is None


def test_a_model_file_becomes_a_running_engine(tiny: str) -> None:
    with LLM(tiny, kv_tokens=2048, num_threads=1) as llm:
        assert "tiny (llama" in str(llm.startup)
        assert "bit-equal" in str(llm.startup)
        assert llm.startup.costs.prefill_ns_per_token >= 1
        assert llm.startup.memory.max_model_len == 512
        params = SamplingParams(temperature=0, max_tokens=5, ignore_eos=True)
        [output] = llm.chat([{"role": "user", "content": "hi"}], params)
        assert output.prompt == "<|start|>user:hi<|end|><|start|>assistant:"
        assert len(output.outputs[0].token_ids) == 5


@pytest.mark.parametrize(
    ("mode", "depth", "has_cache"),
    [
        ("recompute", 1, True),
        ("recompute", 3, False),
        ("swap", 1, False),
        ("swap", 2, True),
        ("auto", 2, False),
    ],
)
def test_a_real_model_gives_the_same_under_pressure(
    tiny: str, mode: str, depth: int, has_cache: bool
) -> None:
    prompts = [f"prompt {number}: " + "abc " * number for number in range(8)]
    params = [
        SamplingParams(
            temperature=0.8 * (number % 2), seed=number, max_tokens=24, logprobs=2, n=1 + number % 3
        )
        for number in range(8)
    ]
    settings: dict[str, Any] = {"max_model_len": 96, "num_threads": 1, "expected_output_share": 0.0}
    tight_settings: dict[str, Any] = {
        "kv_tokens": 160,
        "preemption_mode": mode,
        "steps_in_flight": depth,
        "enable_prefix_caching": has_cache,
    }
    with LLM(tiny, **settings) as llm:
        free = llm.generate(prompts, params)
    with LLM(tiny, **settings, **tight_settings) as llm:
        tight = llm.generate(prompts, params)
    assert sum(output.metrics.num_preemptions for output in tight) > 0
    before = [one for output in free for one in output.outputs]
    after = [one for output in tight for one in output.outputs]
    for one, other in zip(before, after, strict=True):
        assert one.token_ids == other.token_ids
        assert (one.text, one.finish_reason) == (other.text, other.finish_reason)
        assert one.cumulative_logprob == pytest.approx(other.cumulative_logprob, abs=1e-4)


def test_a_length_beyond_the_model_is_refused_before_anything_is_loaded(tiny: str) -> None:
    with pytest.raises(ModelError, match="at most 512"):
        LLM(tiny, max_model_len=513)
    with pytest.raises(CapacityError, match="largest max_model_len that fits is 65"):
        LLM(tiny, kv_tokens=64)
    with pytest.raises(ModelError, match="no model at"):
        LLM(tiny + ".missing")


def test_without_the_extra_the_line_that_installs_it_is_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("forebay.startup._EXTRA", ("torch", "no_such_module"))
    for attempt in (LLM, lambda: find_tokenizer(EngineConfig())):
        with pytest.raises(ConfigError, match=r"needs no_such_module.*forebay\[serve\]"):
            attempt()


def test_cuda_is_asked_for_and_not_there(tiny: str) -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    with pytest.raises(ConfigError, match="no CUDA device"):
        LLM(tiny, device="cuda")


def test_the_tokenizer_may_come_from_elsewhere(tiny: str, tmp_path: Path) -> None:
    assert find_tokenizer(EngineConfig(model="elsewhere", tokenizer=tiny)).vocab_size >= 258
    with pytest.raises(ModelError, match="does not exist"):
        find_tokenizer(EngineConfig(model=tiny, tokenizer=str(tmp_path / "none")))


def test_a_directory_stands_for_the_one_gguf_file_in_it(tiny: str) -> None:
    folder = str(Path(tiny).parent)
    assert find_tokenizer(EngineConfig(model=folder)).vocab_size >= 258
    with LLM(folder, max_model_len=32, num_threads=1, preemption_mode="recompute") as llm:
        [output] = llm.generate("a", SamplingParams(max_tokens=2, ignore_eos=True))
        assert len(output.outputs[0].token_ids) == 2


@pytest.fixture
def machine(tmp_path: Path) -> tuple[Path, Path]:
    proc, cgroup = tmp_path / "proc", tmp_path / "cgroup"
    proc.mkdir()
    cgroup.mkdir()
    (proc / "meminfo").write_text("MemTotal: 9000 kB\nMemAvailable:    4000 kB\n")
    return proc, cgroup


def test_free_memory_is_what_the_kernel_calls_available(machine: tuple[Path, Path]) -> None:
    assert available_bytes(*machine) == 4000 * 1024


def test_a_container_may_allow_less(machine: tuple[Path, Path]) -> None:
    _, cgroup = machine
    (cgroup / "memory.current").write_text("900000\n")
    (cgroup / "memory.stat").write_text("anon 100\ninactive_file 300000\n")
    (cgroup / "memory.max").write_text("max\n")
    assert available_bytes(*machine) == 4000 * 1024
    (cgroup / "memory.max").write_text("1000000\n")
    assert available_bytes(*machine) == 400_000


def test_an_older_container_is_understood(machine: tuple[Path, Path]) -> None:
    folder = machine[1] / "memory"
    folder.mkdir()
    (folder / "memory.limit_in_bytes").write_text("500000")
    (folder / "memory.usage_in_bytes").write_text("600000")
    assert available_bytes(*machine) == 0


def test_a_machine_that_does_not_tell_is_believed_to_have_memory(tmp_path: Path) -> None:
    assert available_bytes(tmp_path, tmp_path) > 1 << 20
