"""An LLM serving engine whose scheduler loses nothing when the KV cache runs out."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from forebay.async_llm import AsyncLLM
    from forebay.config import EngineConfig
    from forebay.llm import LLM, CompletionOutput, Logprob, RequestMetrics, RequestOutput
    from forebay.sampling_params import SamplingParams

__version__ = "0.1.0"

__all__ = [
    "LLM",
    "AsyncLLM",
    "CompletionOutput",
    "EngineConfig",
    "Logprob",
    "RequestMetrics",
    "RequestOutput",
    "SamplingParams",
    "__version__",
]

_HOMES = {
    "AsyncLLM": "forebay.async_llm",
    "EngineConfig": "forebay.config",
    "SamplingParams": "forebay.sampling_params",
}


def __getattr__(name: str) -> object:
    """Public names are looked up on first use, so that `import forebay` loads nothing else."""
    if name not in __all__:
        raise AttributeError(f"module 'forebay' has no attribute {name!r}")
    return getattr(import_module(_HOMES.get(name, "forebay.llm")), name)


def __dir__() -> list[str]:
    return sorted(__all__)
