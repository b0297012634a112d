"""Where a model's tensors come from: a GGUF file or a Hugging Face directory, told by the path."""

from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from torch import Tensor

from forebay.exec.gguf_source import GgufSource
from forebay.exec.hf_source import HfSource
from forebay.exec.model_config import ModelConfig
from forebay.exec.model_path import find_model


class ModelSource(Protocol):
    """One model on disk; tensors go by their Hugging Face names."""

    path: Path
    config: ModelConfig

    def names(self) -> Iterable[str]:
        """Names of all tensors."""

    def describe(self, name: str) -> str:
        """Where tensor `name` is, for error messages."""

    def shape(self, name: str) -> tuple[int, ...] | None:
        """Shape of tensor `name`, or None when there is no such tensor."""

    def read(self, name: str) -> Tensor:
        """Tensor `name` in any float type, on the CPU, of the shape that `shape` tells."""


def open_model(path: Path) -> ModelSource:
    """Open the model at `path`, reading its description but no tensor yet.

    Raises ModelError when nothing is there, or nothing that can be loaded.
    """
    path = find_model(path)
    return GgufSource(path) if path.is_file() else HfSource(path)
