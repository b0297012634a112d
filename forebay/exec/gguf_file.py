"""One GGUF file: its metadata and the places of its tensors, every length checked against the file.

Parsing is that of `gguf.GGUFReader`. Three of its methods are overridden (gguf 0.17 to 0.19): it
cuts reads short at the end of the file instead of failing, and it makes several numpy views of
each string, which takes seconds for a vocabulary with its merges.
"""

import math
import struct
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType
from gguf.constants import GGML_QUANT_SIZES
from gguf.gguf_reader import ReaderField, ReaderTensor

from forebay.errors import ModelError

_LENGTH = struct.Struct("<Q")
_MAX_DIMENSIONS = 4
_LONG_ARRAY = 1024
_TYPE_NUMBERS = frozenset(int(item) for item in GGMLQuantizationType)


class GgufFile:
    """Metadata and tensors of the file at `path`; the tensor data stays in the mapped file.

    Raises ModelError when the file is missing, cut short or not GGUF.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._reader = _CheckedReader(path)
            self.metadata = {
                key: field.contents()
                for key, field in self._reader.fields.items()
                if not _is_vocabulary(field)
            }
        except OSError as error:
            raise ModelError(f"cannot read {path}: {error.strerror or error}") from error
        except (ValueError, KeyError, IndexError, TypeError, OverflowError) as error:
            reason = error.args[0] if error.args else error
            raise ModelError(
                f"{path} is not a sound GGUF file: {reason}; fetch or convert it anew"
            ) from error
        self.tensors: dict[str, ReaderTensor] = {item.name: item for item in self._reader.tensors}


def _is_vocabulary(field: ReaderField) -> bool:
    """Whether the field is a long array: tokens, scores, merges, which the tokenizer reads."""
    return field.types[0] == GGUFValueType.ARRAY and (
        len(field.data) > _LONG_ARRAY or sum(part.size for part in field.parts) > _LONG_ARRAY
    )


class _CheckedReader(GGUFReader):
    """GGUFReader that raises ValueError where the file ends too early, and reads arrays fast."""

    # The signatures are those of the parent, whose raw numpy values are untyped.
    def _get(self, offset: Any, dtype: Any, count: Any = 1, override_order: Any = None) -> Any:
        if isinstance(self.data, np.memmap):
            # Slicing a memmap costs 20 times as much as slicing a plain view of it.
            self.data = self.data.view(np.ndarray)  # type: ignore[assignment]  # same memory
        end = int(offset) + np.dtype(dtype).itemsize * int(count)
        if end > self.data.size:
            raise ValueError(f"it ends at byte {self.data.size}, but says it goes on to {end}")
        return super()._get(offset, dtype, count, override_order)

    def _get_field_parts(self, orig_offs: int, raw_type: int) -> Any:
        if raw_type != GGUFValueType.ARRAY:
            return super()._get_field_parts(orig_offs, raw_type)
        if self.byte_order != "I":
            raise ValueError("its byte order is not that of this machine")
        item_type = GGUFValueType(int(self._get(orig_offs, np.uint32)[0]))
        count = int(self._get(orig_offs + 4, np.uint64)[0])
        types = [GGUFValueType.ARRAY, item_type]
        start = orig_offs + 4 + 8
        if item_type == GGUFValueType.STRING:
            end, parts = self._strings(start, count)
            return end - orig_offs, parts, list(range(count)), types
        if item_type not in self.gguf_scalar_to_np:
            raise ValueError(f"it holds an array of {item_type.name}, which is not read")
        numbers = self._get(start, self.gguf_scalar_to_np[item_type], count)
        return start + numbers.nbytes - orig_offs, [numbers], [0], types

    def _strings(self, at: int, count: int) -> tuple[int, list[Any]]:
        data, size = self.data, self.data.size
        buffer: Any = data  # numpy types are no Buffer to mypy before Python 3.12
        parts: list[Any] = []
        for _ in range(count):
            start = at + _LENGTH.size
            if start > size:
                break
            at = start + _LENGTH.unpack_from(buffer, at)[0]
            parts.append(data[start:at])
        if len(parts) < count or at > size:
            raise ValueError(f"it ends at byte {size}, inside an array of {count} strings")
        return at, parts

    def _build_tensors(self, start_offs: int, fields: list[ReaderField]) -> None:
        if self.byte_order != "I":
            raise ValueError("its byte order is not that of this machine")
        for field in fields:
            self._check_tensor(start_offs, field)
        super()._build_tensors(start_offs, fields)

    def _check_tensor(self, start_offs: int, field: ReaderField) -> None:
        _, name_data, num_dims, dims, raw_type, offset = field.parts
        name = bytes(name_data).decode()
        if not 1 <= num_dims[0] <= _MAX_DIMENSIONS:
            raise ValueError(f"tensor {name} has {num_dims[0]} dimensions")
        if raw_type[0] not in _TYPE_NUMBERS:
            raise ValueError(f"tensor {name} has the unknown type number {raw_type[0]}")
        block_size, block_bytes = GGML_QUANT_SIZES[GGMLQuantizationType(raw_type[0])]
        sizes = [int(size) for size in dims]
        if sizes[0] % block_size:
            raise ValueError(f"tensor {name} has rows of {sizes[0]}, not of whole blocks")
        end = start_offs + int(offset[0]) + math.prod(sizes) // block_size * block_bytes
        if end > self.data.size:
            raise ValueError(
                f"tensor {name} goes on to byte {end}, but the file ends at byte {self.data.size}"
            )
