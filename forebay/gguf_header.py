"""The head of a GGUF file in one pass: its key-value section and where its tensors are.

`gguf.GGUFReader` (gguf 0.19.0) makes several numpy views of every string, which takes seconds for
a vocabulary with its merges, and cuts reads short at the end of the file instead of failing.
Layout: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, versions 2 and 3.
"""

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path

from forebay.errors import ModelError

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_STRING = 8
_ARRAY = 9
_U64 = struct.Struct("<Q")
# Type id in the file to the struct letter of one little-endian value.
_SCALARS = dict(zip((0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12), "BbHhIif?Qqd", strict=True))
_MAX_DIMENSIONS = 4
_ALIGNMENT_KEY = "general.alignment"
_DEFAULT_ALIGNMENT = 32


@dataclass(slots=True, frozen=True, kw_only=True)
class TensorPlace:
    """Where a tensor is; nothing about its size has been checked.

    `shape`: outermost dimension first. `type_number`: as ggml counts them. `offset`: in bytes,
    from the start of the file.
    """

    name: str
    shape: tuple[int, ...]
    type_number: int
    offset: int


@dataclass(slots=True, frozen=True, kw_only=True)
class GgufHeader:
    """Metadata by key, as plain Python values, and the place of each tensor by name."""

    values: dict[str, object]
    tensors: dict[str, TensorPlace]


def read_gguf_header(path: Path) -> GgufHeader:
    """Read the head of the GGUF file at `path`.

    Raises ModelError when the file is missing, is no GGUF, or breaks off inside its head.
    """
    try:
        with path.open("rb") as file:
            head = file.read(len(_MAGIC))
            if head != _MAGIC:
                raise ValueError(f"it starts with {head!r}")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
                return _Cursor(view).read_header()
    except OSError as error:
        raise ModelError(f"cannot read {path}: {error.strerror or error}") from error
    except (struct.error, ValueError, OverflowError, RecursionError) as error:
        raise unsound(path, error) from error


def unsound(path: Path, reason: object) -> ModelError:
    """The error for a GGUF file that contradicts itself, or is none."""
    return ModelError(f"{path} is not a sound GGUF file: {reason}; fetch or convert it anew")


class _Cursor:
    """A reading position in the mapped file."""

    def __init__(self, view: mmap.mmap) -> None:
        self._view = view
        self._at = len(_MAGIC)

    def read_header(self) -> GgufHeader:
        version = self._number("I")
        if version not in _VERSIONS:
            known = " and ".join(map(str, _VERSIONS))
            raise ValueError(f"it has version {version}, but little-endian {known} are read")
        num_tensors, num_values = self._number("Q"), self._number("Q")
        values: dict[str, object] = {}
        for _ in range(num_values):
            key = self._string()
            if key in values:
                raise ValueError(f"it has metadata {key} twice")
            values[key] = self._value(self._number("I"))
        places = [self._place() for _ in range(num_tensors)]
        start = self._data_start(values.get(_ALIGNMENT_KEY, _DEFAULT_ALIGNMENT))
        tensors: dict[str, TensorPlace] = {}
        for name, shape, type_number, offset in places:
            if name in tensors:
                raise ValueError(f"it has tensor {name} twice")
            tensors[name] = TensorPlace(
                name=name, shape=shape, type_number=type_number, offset=start + offset
            )
        return GgufHeader(values=values, tensors=tensors)

    def _place(self) -> tuple[str, tuple[int, ...], int, int]:
        name, num_dimensions = self._string(), self._number("I")
        if not 1 <= num_dimensions <= _MAX_DIMENSIONS:
            raise ValueError(f"tensor {name} has {num_dimensions} dimensions")
        # GGUF counts dimensions from the innermost.
        shape = tuple(self._number("Q") for _ in range(num_dimensions))[::-1]
        return name, shape, self._number("I"), self._number("Q")

    def _data_start(self, alignment: object) -> int:
        if not isinstance(alignment, int) or isinstance(alignment, bool) or alignment < 1:
            raise ValueError(f"{_ALIGNMENT_KEY} is {alignment!r}")
        return self._at + -self._at % alignment

    def _value(self, kind: int) -> object:
        if kind == _STRING:
            return self._string()
        if kind == _ARRAY:
            return self._array()
        return self._scalars(kind, 1)[0]

    def _array(self) -> list[object]:
        kind, count = self._number("I"), self._number("Q")
        if kind == _STRING:
            return self._strings(count)
        if kind == _ARRAY:
            return [self._array() for _ in range(count)]
        return list(self._scalars(kind, count))

    def _scalars(self, kind: int, count: int) -> tuple[object, ...]:
        letter = _SCALARS.get(kind)
        if letter is None:
            raise ValueError(f"it has a value of the unknown type {kind}")
        layout = f"<{count}{letter}"
        return struct.unpack_from(layout, self._view, self._pass(struct.calcsize(layout)))

    def _string(self) -> str:
        size = self._number("Q")
        start = self._pass(size)
        return self._view[start : start + size].decode()

    def _strings(self, count: int) -> list[object]:
        # The hot loop of the file: one call per string costs twice as much.
        view, at, end = self._view, self._at, len(self._view)
        length_at = _U64.unpack_from
        items: list[object] = []
        for _ in range(count):
            start = at + _U64.size
            at = start + length_at(view, at)[0] if start <= end else start
            if at > end:
                raise ValueError(f"it ends at byte {end}, but says it goes on to {at}")
            items.append(view[start:at].decode())
        self._at = at
        return items

    def _number(self, letter: str) -> int:
        layout = f"<{letter}"
        value: int = struct.unpack_from(layout, self._view, self._pass(struct.calcsize(layout)))[0]
        return value

    def _pass(self, size: int) -> int:
        """Moves on by `size` bytes, which are there; returns where they start."""
        # Checked first: a broken count must not make anyone reserve terabytes.
        start, end = self._at, len(self._view)
        if start + size > end:
            raise ValueError(f"it ends at byte {end}, but says it goes on to {start + size}")
        self._at = start + size
        return start
