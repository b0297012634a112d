"""One GGUF file: its metadata and its tensors, every length checked against the file."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType
from gguf.constants import GGML_QUANT_SIZES
from numpy.typing import NDArray

from forebay.errors import ModelError
from forebay.gguf_header import TensorPlace, read_gguf_header, unsound

_TYPE_NUMBERS = frozenset(int(item) for item in GGMLQuantizationType)
_PLAIN = {GGMLQuantizationType.F32: np.float32, GGMLQuantizationType.F16: np.float16}


@dataclass(slots=True, frozen=True, kw_only=True)
class StoredTensor:
    """A tensor as the file holds it.

    `data` has `shape` for F32 and F16; for all other kinds it is bytes, a row after another.
    """

    shape: tuple[int, ...]
    kind: GGMLQuantizationType
    offset: int
    data: NDArray[Any]


class GgufFile:
    """Metadata and tensors of the file at `path`; the tensor data stays in the mapped file.

    Raises ModelError when the file is missing, cut short or not GGUF.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        header = read_gguf_header(path)
        self.metadata = header.values
        try:
            # Slicing a memmap costs 20 times as much as slicing a plain view of it.
            self._bytes = np.memmap(path, np.uint8, mode="r").view(np.ndarray)
            self.tensors = {name: self._tensor(at) for name, at in header.tensors.items()}
        except OSError as error:
            raise ModelError(f"cannot read {path}: {error.strerror or error}") from error
        except ValueError as error:
            raise unsound(path, error) from error

    def _tensor(self, place: TensorPlace) -> StoredTensor:
        name, shape = place.name, place.shape
        if place.type_number not in _TYPE_NUMBERS:
            raise ValueError(f"tensor {name} has the unknown type number {place.type_number}")
        kind = GGMLQuantizationType(place.type_number)
        block_size, block_bytes = GGML_QUANT_SIZES[kind]
        if shape[-1] % block_size:
            raise ValueError(f"tensor {name} has rows of {shape[-1]}, not of whole blocks")
        row_bytes = shape[-1] // block_size * block_bytes
        end = place.offset + math.prod(shape[:-1]) * row_bytes
        if end > len(self._bytes):
            raise ValueError(
                f"tensor {name} goes on to byte {end}, but the file ends at byte {len(self._bytes)}"
            )
        data = self._bytes[place.offset : end]
        if kind in _PLAIN:
            data = data.view(_PLAIN[kind]).reshape(shape)
        else:
            data = data.reshape(*shape[:-1], row_bytes)
        return StoredTensor(shape=shape, kind=kind, offset=place.offset, data=data)
