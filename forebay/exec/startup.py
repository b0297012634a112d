"""The part of starting that needs torch: memory of the device, the model, its pools, the runner."""

from dataclasses import dataclass

import torch

from forebay.core.limits import Costs
from forebay.errors import ConfigError
from forebay.exec.decoder import load_decoder
from forebay.exec.kv_tensors import KvLayout, KvTensors
from forebay.exec.linear import InvariantLinear, LinearPlan, choose_plan
from forebay.exec.model_config import DType, ModelConfig
from forebay.exec.model_source import ModelSource
from forebay.exec.runner import Runner
from forebay.exec.weights import torch_dtype


@dataclass(slots=True, frozen=True, kw_only=True)
class RunnerSizes:
    """What a runner is built for."""

    num_blocks: int
    num_host_blocks: int
    block_size: int
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int


@dataclass(slots=True, frozen=True, kw_only=True)
class BuiltRunner:
    """A runner, what its work costs, and how its products are kept exact."""

    runner: Runner
    costs: Costs
    linear: LinearPlan


def cuda_memory() -> tuple[int, int]:
    """Free and total bytes of the GPU. Raises `ConfigError` without one."""
    if not torch.cuda.is_available():
        raise ConfigError('device="cuda", but torch finds no CUDA device here: use device="cpu"')
    free, total = torch.cuda.mem_get_info()
    return free, total


def build_runner(
    source: ModelSource, sizes: RunnerSizes, *, dtype: DType, device: str
) -> BuiltRunner:
    """Loads the weights, allocates and touches both pools, and measures costs."""
    model = source.config
    linear = linear_plan(model, dtype=dtype, device=device)
    products = InvariantLinear(linear)
    decoder = load_decoder(
        source,
        max_model_len=sizes.max_model_len,
        dtype=dtype,
        device=device,
        linear=products,
        prepare=products.prepare,
    )
    layout = KvLayout(
        num_layers=model.num_layers,
        num_kv_heads=model.num_kv_heads,
        head_dim=model.head_dim,
        block_size=sizes.block_size,
        dtype=torch_dtype(dtype),
    )
    pools = KvTensors(
        layout,
        num_blocks=sizes.num_blocks,
        num_host_blocks=sizes.num_host_blocks,
        device=device,
    )
    runner = Runner(model=decoder, pools=pools, max_num_seqs=sizes.max_num_seqs)
    # The last token of a sequence is never computed.
    chunk = min(sizes.max_num_batched_tokens, sizes.max_model_len - 1)
    costs = runner.measure_costs(max_chunk_tokens=chunk)
    return BuiltRunner(runner=runner, costs=costs, linear=linear)


def linear_plan(model: ModelConfig, *, dtype: DType, device: str) -> LinearPlan:
    """How products of the model's shapes stay independent of the batch, tried on random weights.

    Tried before loading, so that each weight is laid out once; the layout depends on shapes alone.
    """
    shapes = {
        (model.q_size + 2 * model.kv_size, model.hidden_size),
        (model.hidden_size, model.q_size),
        (2 * model.intermediate_size, model.hidden_size),
        (model.hidden_size, model.intermediate_size),
        (model.vocab_size, model.hidden_size),
    }
    generator = torch.Generator().manual_seed(0)
    return choose_plan(
        torch.randn(shape, generator=generator).to(device=device, dtype=torch_dtype(dtype))
        for shape in sorted(shapes)
    )
