import pytest

from forebay.config import EngineConfig
from forebay.core.effects import Refuse
from forebay.core.events import Arrive
from forebay.core.intake import judge
from forebay.core.limits import Limits
from forebay.errors import CapacityError, ConfigError
from forebay.memory_plan import GIB, MIB, MemoryFacts, MemoryPlan, longest_blocks, plan_memory
from forebay.units import Nanos, RequestId

KV = 1024  # bytes a token


def facts(**changes: int) -> MemoryFacts:
    found = {
        "weights": 512 * MIB,
        "activations": 128 * MIB,
        "kv_per_token": KV,
        "host_free": 16 * GIB,
        "device_free": 16 * GIB,
        "device_total": 20 * GIB,
        "longest_exact": 4096,
    }
    return MemoryFacts(**{**found, **changes})


def plan(settings: dict[str, object], **changes: int) -> MemoryPlan:
    return plan_memory(EngineConfig.from_settings(settings), facts(**changes))


def test_tokens_are_rounded_down_to_blocks() -> None:
    found = plan({"kv_tokens": 1000, "max_model_len": 100})
    assert (found.num_blocks, found.num_tokens) == (62, 992)


def test_bytes_are_rounded_down_to_blocks() -> None:
    found = plan({"kv_cache_memory_bytes": 3 * 16 * KV + 5, "max_model_len": 32})
    assert found.num_blocks == 3


def test_one_longest_request_must_fit_and_the_largest_that_would_is_named() -> None:
    with pytest.raises(CapacityError, match="largest max_model_len that fits is 161"):
        plan({"num_gpu_blocks_override": 10})
    assert plan({"num_gpu_blocks_override": 10, "max_model_len": 161}).num_longest == 1.0
    with pytest.raises(CapacityError):
        plan({"num_gpu_blocks_override": 10, "max_model_len": 162})


@pytest.mark.parametrize("num_blocks", [1, 2, 7, 10])
@pytest.mark.parametrize("block_size", [1, 16])
def test_what_start_accepts_the_scheduler_accepts(num_blocks: int, block_size: int) -> None:
    largest = num_blocks * block_size + 1
    lone = Limits(num_blocks=num_blocks, block_size=block_size, max_model_len=largest)
    config = EngineConfig(num_gpu_blocks_override=num_blocks, block_size=block_size)
    settled = plan_memory(
        EngineConfig(num_gpu_blocks_override=num_blocks, block_size=block_size, max_model_len=-1),
        facts(),
    )
    assert settled.max_model_len == largest
    longest = Arrive(
        request_id=RequestId(1), arrival_ns=Nanos(0), num_prompt=largest - 1, max_tokens=1
    )
    assert not isinstance(judge(longest, lone), Refuse)
    with pytest.raises(CapacityError, match=f"fits is {largest}"):
        plan_memory(config, facts(longest_exact=largest + 1))


def test_minus_one_takes_the_longest_that_fits_but_not_more_than_the_model_knows() -> None:
    assert plan({"num_gpu_blocks_override": 10, "max_model_len": -1}).max_model_len == 161
    assert plan({"num_gpu_blocks_override": 1000, "max_model_len": -1}).max_model_len == 4096


def test_the_usual_pool_of_a_cpu_is_bounded_by_what_can_be_used() -> None:
    few = plan({"max_num_seqs": 2, "max_model_len": 161})
    assert few.num_blocks == 20
    many = plan({"max_num_seqs": 1024})
    assert many.num_blocks * many.block_bytes == 2 * GIB


def test_a_small_host_gets_a_smaller_pool() -> None:
    found = plan({}, host_free=GIB, device_free=GIB)
    assert found.num_blocks * found.block_bytes <= (GIB - 640 * MIB) // 2


def test_weights_that_do_not_fit_are_refused() -> None:
    with pytest.raises(CapacityError, match=r"weights \(0.50 GiB\)"):
        plan({}, device_free=600 * MIB)


def test_a_pool_larger_than_memory_is_refused() -> None:
    with pytest.raises(CapacityError, match="blocks fit"):
        plan({"kv_cache_memory_bytes": 17 * GIB})


def test_gpu_memory_utilization_counts_what_others_use() -> None:
    found = plan({"device": "cuda", "gpu_memory_utilization": 0.5})
    assert found.num_blocks == (10 * GIB - 4 * GIB - 640 * MIB) // (16 * KV)


def test_i4_the_default_swap_pool_fits_a_small_host() -> None:
    few = plan({"kv_tokens": 8192, "max_num_seqs": 3})
    assert few.num_host_blocks == 3 * longest_blocks(4096, 16)
    small, large = plan({"kv_tokens": 8192, "max_num_seqs": 2048}), plan({"max_num_seqs": 2048})
    assert small.num_host_blocks * small.block_bytes == GIB
    assert large.num_host_blocks == large.num_blocks
    found = plan({"kv_tokens": 8192}, host_free=648 * MIB, device_free=648 * MIB)
    assert found.num_host_blocks == 0
    assert "host memory is short" in "\n".join(found.lines())
    with pytest.raises(CapacityError, match="swap_space 4 GiB does not fit"):
        plan({"swap_space": 4, "kv_tokens": 8192}, host_free=2 * GIB, device_free=2 * GIB)


def test_no_host_memory_is_taken_for_recompute() -> None:
    assert plan({"preemption_mode": "recompute", "swap_space": 1}).num_host_blocks == 0


def test_swap_needs_at_least_one_block_of_host_memory() -> None:
    with pytest.raises(CapacityError, match="swap"):
        plan({"preemption_mode": "swap", "swap_space": 1e-9})


def test_whole_prompts_must_fit_a_step_also_with_the_models_own_length() -> None:
    with pytest.raises(ConfigError, match="max_num_batched_tokens"):
        plan({"enable_chunked_prefill": False})


def test_the_report_tells_how_memory_divides_and_what_fits() -> None:
    text = "\n".join(plan({"kv_tokens": 8192}).lines())
    assert "weights 512 MiB" in text
    assert "8,192 tokens, or 2.0 requests of max_model_len 4,096" in text


@pytest.mark.parametrize(("length", "blocks"), [(2, 1), (16, 1), (17, 1), (18, 2), (33, 2)])
def test_the_last_token_needs_no_slot(length: int, blocks: int) -> None:
    assert longest_blocks(length, 16) == blocks
