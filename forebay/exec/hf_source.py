"""A model in a Hugging Face directory: config.json beside safetensors, one file or sharded."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from forebay.errors import ModelError
from forebay.exec.hf_config import read_hf_config, read_json_object

_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_DTYPES = ("F64", "F32", "F16", "BF16")


class HfSource:
    """The model in `directory`.

    Raises ModelError, here and while reading tensors, for anything broken or not computed.
    """

    def __init__(self, directory: Path) -> None:
        self.path = directory
        self.config = read_hf_config(directory)
        self._file_of = self._find_tensors()

    def names(self) -> Iterable[str]:
        """Names of all tensors."""
        return self._file_of.keys()

    def describe(self, name: str) -> str:
        """Where tensor `name` is, for error messages."""
        return f"{self.path / self._file_of.get(name, '')}: tensor {name}"

    def shape(self, name: str) -> tuple[int, ...] | None:
        """Shape of tensor `name`, or None when there is no such tensor."""
        if name not in self._file_of:
            return None
        view = self._slice(name)
        if view.get_dtype() not in _DTYPES:
            raise ModelError(
                f"{self.describe(name)} has type {view.get_dtype()}, which is not supported; "
                f"supported are {', '.join(_DTYPES)}"
            )
        return tuple(view.get_shape())

    def read(self, name: str) -> Tensor:
        """Tensor `name` in the type of its file, of the shape that `shape` tells."""
        values: Tensor = self._slice(name)[...]
        return values

    def _slice(self, name: str) -> Any:
        # Opening parses the head of the file only, and its data is mapped, not read.
        path = self.path / self._file_of[name]
        try:
            return self._opened(path).get_slice(name)
        except SafetensorError as error:
            raise ModelError(f"{self.describe(name)} cannot be read: {error}") from error

    def _find_tensors(self) -> dict[str, str]:
        """The file of each tensor, by the index where there is one."""
        self._files: dict[Path, Any] = {}
        index = self.path / _INDEX
        if index.exists():
            return self._read_index(index)
        single = self.path / _SINGLE
        if not single.exists():
            raise ModelError(
                f"{self.path} holds neither {_SINGLE} nor {_INDEX}; only safetensors are loaded"
            )
        return dict.fromkeys(self._opened(single).keys(), _SINGLE)

    def _read_index(self, index: Path) -> dict[str, str]:
        weight_map = read_json_object(index).get("weight_map")
        if not isinstance(weight_map, dict):
            raise ModelError(f"{index}: weight_map is missing or no object")
        for name, file in weight_map.items():
            if not isinstance(file, str) or Path(file).name != file:
                raise ModelError(f"{index}: tensor {name} is said to be in {file!r}, no file name")
        for file in sorted(set(weight_map.values())):
            if not (self.path / file).exists():
                raise ModelError(f"{index} names {file}, which is missing")
        return weight_map

    def _opened(self, path: Path) -> Any:
        if path not in self._files:
            try:
                self._files[path] = safe_open(str(path), framework="pt", device="cpu")
            except (SafetensorError, OSError) as error:
                raise ModelError(f"{path} is not a sound safetensors file: {error}") from error
        return self._files[path]
