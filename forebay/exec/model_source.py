"""Where a model's tensors come from: a GGUF file or a Hugging Face directory, told by the path."""

from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from torch import Tensor

from forebay.errors import ModelError
from forebay.exec.gguf_source import GgufSource
from forebay.exec.hf_source import HfSource
from forebay.exec.model_config import ModelConfig


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
    if not path.exists():
        raise ModelError(f"no model at {path}: give a .gguf file or a directory with config.json")
    if path.is_file():
        return GgufSource(path)
    if (path / "config.json").exists():
        return HfSource(path)
    files = sorted(path.glob("*.gguf"))
    if len(files) == 1:
        return GgufSource(files[0])
    if files:
        raise ModelError(
            f"{path} holds {len(files)} GGUF files; name one of them, such as {files[0]}"
        )
    raise ModelError(f"{path} holds neither config.json nor a .gguf file")
