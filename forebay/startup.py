"""From settings to a running engine: opens the model, divides memory, builds all parts.

What touches tensors runs on the engine's device thread from the beginning, so that the worker
threads of the numerical libraries belong to that thread alone.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from forebay.block_hash import root_hash
from forebay.config import EngineConfig
from forebay.core.limits import ArtificialPressure, Costs, Limits, Policy, PreemptionMode
from forebay.engine.device_thread import DeviceThread
from forebay.engine.live import EngineParts, LiveEngine
from forebay.engine.record import NewRequest
from forebay.engine.requests import Vocabulary
from forebay.errors import ConfigError
from forebay.host_memory import available_bytes
from forebay.memory_plan import FIT, MemoryFacts, MemoryPlan, plan_memory

if TYPE_CHECKING:
    from forebay.exec.model_config import ModelConfig
    from forebay.exec.model_source import ModelSource
    from forebay.exec.startup import BuiltRunner
    from forebay.text import OutputText, TextTokenizer

_LOG = logging.getLogger("forebay")
_EXTRA = ("torch", "numba", "gguf", "safetensors", "tokenizers", "jinja2")


@dataclass(slots=True, frozen=True, kw_only=True)
class StartupReport:
    """What was started, how memory divides and what fits. Its text is for people."""

    model: str
    architecture: str
    num_parameters: int
    device: str
    dtype: str
    num_threads: int
    products: str
    """How matrix products are kept independent of the batch."""
    memory: MemoryPlan
    costs: Costs
    seconds: float

    def __str__(self) -> str:
        """Several lines without a newline at the end."""
        threads = f", {self.num_threads} threads" if self.device == "cpu" else ""
        first = (
            f"model: {self.model} ({self.architecture}, {self.num_parameters / 1e6:,.0f}M "
            f"parameters) on {self.device}, {self.dtype}{threads}; ready in {self.seconds:.1f} s"
        )
        products = f"exactness: matrix products {self.products}"
        return "\n".join([first, products, *self.memory.lines()])


@dataclass(slots=True, frozen=True, kw_only=True)
class Started:
    """A running engine and what belongs to it."""

    engine: LiveEngine
    tokenizer: "TextTokenizer"
    config: EngineConfig
    report: StartupReport


def start(config: EngineConfig) -> Started:
    """Builds an engine by `config`, which has been checked.

    Raises: ConfigError, CapacityError or ModelError, before the weights are read if possible.
    """
    require_extra()
    device = DeviceThread()
    try:
        return _start_on(device, config)
    except BaseException:
        device.close()
        raise


def _start_on(device: DeviceThread, config: EngineConfig) -> Started:
    begun = time.monotonic()
    num_threads = device.call(lambda: _set_threads(config))
    source = device.call(lambda: _open_source(config))
    plan = plan_memory(config, device.call(lambda: _facts(config, source.config)))
    tokenizer = find_tokenizer(config)
    built = device.call(lambda: _build(config, source, plan))
    report = StartupReport(
        model=_display_name(source.path),
        architecture=source.config.architecture.value,
        num_parameters=_parameters(source.config),
        device=config.device,
        dtype=config.dtype,
        num_threads=num_threads,
        products=built.linear.describe(),
        memory=plan,
        costs=built.costs,
        seconds=time.monotonic() - begun,
    )
    _LOG.info("%s", report)
    limits = limits_of(config, plan, built.costs)
    vocabulary = Vocabulary(
        size=min(source.config.vocab_size, tokenizer.vocab_size),
        eos_token_ids=frozenset(tokenizer.eos_token_ids) | frozenset(source.config.eos_token_ids),
        block_size=config.block_size,
        prefix_root=root_hash(_fingerprint(config, source)) if limits.prefix_caching else None,
    )
    engine = LiveEngine(
        EngineParts(
            limits=limits,
            executor=built.runner,
            device=device,
            vocabulary=vocabulary,
            new_text=text_maker(tokenizer),
            token_text=lambda token: tokenizer.decode([token], skip_special_tokens=False),
            seed=config.seed,
        )
    )
    return Started(engine=engine, tokenizer=tokenizer, config=config, report=report)


def _set_threads(config: EngineConfig) -> int:
    """Before torch is first imported, if this process has not done so."""
    from forebay.exec.threads import configure_threads

    return configure_threads(config.num_threads)


def _open_source(config: EngineConfig) -> "ModelSource":
    from forebay.exec.model_source import open_model

    return open_model(_model_path(config))


def _model_path(config: EngineConfig) -> Path:
    from forebay.exec.embedded import embedded_model_path
    from forebay.exec.model_path import find_model

    return embedded_model_path() if config.model is None else find_model(Path(config.model))


def _facts(config: EngineConfig, model: "ModelConfig") -> MemoryFacts:
    """What there is and what will be taken, before anything is loaded."""
    from forebay.exec import model_config

    dtype = model_config.DType(config.dtype)
    host_free = available_bytes()
    device_free, device_total = host_free, host_free
    if config.device == "cuda":
        device_free, device_total = _cuda_memory()
    longest = model.max_exact_len
    if config.max_model_len is not None and config.max_model_len != FIT:
        model.check_max_model_len(config.max_model_len)
        longest = config.max_model_len
    return MemoryFacts(
        weights=model_config.weight_bytes(model, dtype)
        + model_config.rope_table_bytes(model, longest, dtype),
        activations=model_config.activation_bytes(
            model,
            max_num_batched_tokens=config.max_num_batched_tokens,
            max_num_seqs=config.max_num_seqs,
            dtype=dtype,
        ),
        kv_per_token=model.kv_bytes_per_token(dtype.num_bytes),
        host_free=host_free,
        device_free=device_free,
        device_total=device_total,
        longest_exact=model.max_exact_len,
    )


def _cuda_memory() -> tuple[int, int]:
    from forebay.exec.startup import cuda_memory

    return cuda_memory()


def _build(config: EngineConfig, source: "ModelSource", plan: MemoryPlan) -> "BuiltRunner":
    from forebay.exec.model_config import DType
    from forebay.exec.startup import RunnerSizes, build_runner

    sizes = RunnerSizes(
        num_blocks=plan.num_blocks,
        num_host_blocks=plan.num_host_blocks,
        block_size=plan.block_size,
        max_model_len=plan.max_model_len,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
    )
    return build_runner(source, sizes, dtype=DType(config.dtype), device=config.device)


def _fingerprint(config: EngineConfig, source: "ModelSource") -> str:
    """What makes keys and values differ for the same tokens."""
    return f"{source.path}|{config.dtype}|{config.block_size}"


def _parameters(model: "ModelConfig") -> int:
    from forebay.exec.model_config import parameter_count

    return parameter_count(model)


def _display_name(path: Path) -> str:
    return path.stem if path.is_file() else path.name


def require_extra() -> None:
    """Raises `ConfigError` with the line to type where the live engine is not installed."""
    missing = [name for name in _EXTRA if find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"the live engine needs {', '.join(missing)}, not installed here. Install the extra: "
            "pip install 'forebay[serve]', or pip install '.[serve]' in a checkout"
        )


def limits_of(config: EngineConfig, plan: MemoryPlan, costs: Costs) -> Limits:
    """The scheduler's limits: settings, sizes that were found, costs that were measured."""
    pressure = None
    if config.artificial_preemption:
        pressure = ArtificialPressure(
            seed=config.artificial_preemption_seed,
            probability=config.artificial_preemption_probability,
            max_refusals=config.artificial_preemption_max,
        )
    return Limits(
        num_blocks=plan.num_blocks,
        block_size=plan.block_size,
        num_host_blocks=plan.num_host_blocks,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        max_model_len=plan.max_model_len,
        long_prefill_token_threshold=config.chunk_limit if config.enable_chunked_prefill else 0,
        chunked_prefill=config.enable_chunked_prefill,
        watermark=config.watermark,
        prefix_caching=config.enable_prefix_caching,
        policy=Policy(config.scheduling_policy),
        preemption_mode=PreemptionMode(config.preemption_mode),
        steps_in_flight=config.steps_in_flight,
        pressure=pressure,
        expected_output_share=config.expected_output_share,
        max_preemption_lead=config.max_preemption_lead,
        costs=costs,
    )


def find_tokenizer(config: EngineConfig) -> "TextTokenizer":
    """The tokenizer given, or else the one that comes with the model. Loads no weights."""
    require_extra()
    from forebay.text import TextTokenizer

    return TextTokenizer.load(config.tokenizer or _model_path(config))


def text_maker(tokenizer: "TextTokenizer") -> Callable[[NewRequest], "OutputText"]:
    """Makes the text side of each sequence."""
    from forebay.text import OutputText

    def new_text(request: NewRequest) -> OutputText:
        params = request.sampling
        return OutputText(
            tokenizer,
            stops=params.stop_strings,
            include_stop=params.include_stop_str_in_output,
            skip_special_tokens=params.skip_special_tokens,
            prompt_ids=request.prompt_token_ids,
        )

    return new_text
