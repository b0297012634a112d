"""GGUF metadata as plain Python values, read in one pass over the head of the file.

`gguf.GGUFReader` (gguf 0.19.0) makes a numpy view of every string, which takes seconds for a
vocabulary with its merges; only the key-value section is needed here, so it is parsed directly.
Layout: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, versions 2 and 3.
"""

import mmap
import struct
from collections.abc import Iterator
from os import PathLike
from pathlib import Path
from typing import TypeVar

from forebay.errors import ModelError

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_STRING = 8
_ARRAY = 9
_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
# Type id in the file to the struct letter of one little-endian value.
_SCALARS = dict(zip((0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12), "BbHhIif?Qqd", strict=True))

_Item = TypeVar("_Item")


class GgufMetadata:
    """The key-value section of one GGUF file, with typed getters that name what is wrong."""

    def __init__(self, values: dict[str, object], *, source: str) -> None:
        self._values = values
        self.source = source

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def text(self, key: str) -> str | None:
        """The string at `key`, or None if there is none; ModelError if it is something else."""
        value = self._values.get(key)
        if value is None or isinstance(value, str):
            return value
        raise self._wrong_type(key, "a string")

    def flag(self, key: str) -> bool | None:
        """The boolean at `key`, or None if there is none; ModelError if it is something else."""
        value = self._values.get(key)
        if value is None or isinstance(value, bool):
            return value
        raise self._wrong_type(key, "a boolean")

    def number(self, key: str) -> int | None:
        """The integer at `key`, or None if there is none; ModelError if it is something else."""
        value = self._values.get(key)
        if value is None or (isinstance(value, int) and not isinstance(value, bool)):
            return value
        raise self._wrong_type(key, "an integer")

    def texts(self, key: str) -> list[str] | None:
        """The array of strings at `key`, or None if there is none."""
        return self._array(key, str, "an array of strings")

    def numbers(self, key: str) -> list[int] | None:
        """The array of integers at `key`, or None if there is none."""
        return self._array(key, int, "an array of integers")

    def reals(self, key: str) -> list[float] | None:
        """The array of numbers at `key` as floats, or None if there is none."""
        value = self._values.get(key)
        if isinstance(value, list) and value and isinstance(value[0], int):
            return [float(item) for item in value]
        return self._array(key, float, "an array of numbers")

    def _array(self, key: str, kind: type[_Item], wanted: str) -> list[_Item] | None:
        value = self._values.get(key)
        if value is None:
            return None
        # All items of a GGUF array have one type, so the first speaks for the rest.
        if isinstance(value, list) and (not value or isinstance(value[0], kind)):
            return value
        raise self._wrong_type(key, wanted)

    def _wrong_type(self, key: str, wanted: str) -> ModelError:
        return ModelError(
            f"{self.source}: metadata {key} should be {wanted}; convert the file anew"
        )


def read_gguf_metadata(path: str | PathLike[str]) -> GgufMetadata:
    """Read the key-value section of the GGUF file at `path`.

    Raises ModelError when the file is missing, is no GGUF, or breaks off inside the section.
    """
    source = str(path)
    try:
        with Path(path).open("rb") as file:
            head = file.read(len(_MAGIC))
            if head != _MAGIC:
                raise ModelError(f"{source} is not a GGUF file: it starts with {head!r}")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
                return GgufMetadata(_Cursor(view).read_all(source), source=source)
    except OSError as error:
        raise ModelError(f"cannot read {source}: {error.strerror or error}") from error
    except (struct.error, UnicodeDecodeError, ValueError) as error:
        raise ModelError(
            f"{source}: the GGUF metadata is broken: {error}; fetch the file anew"
        ) from (error)


class _Cursor:
    """A reading position in the mapped file."""

    def __init__(self, view: mmap.mmap) -> None:
        self._view = view
        self._at = len(_MAGIC)

    def read_all(self, source: str) -> dict[str, object]:
        version = self._u32()
        if version not in _VERSIONS:
            known = " and ".join(map(str, _VERSIONS))
            raise ModelError(f"{source} is GGUF version {version}; little-endian {known} are read")
        self._u64()  # number of tensors
        return {self._string(): self._value(self._u32()) for _ in range(self._u64())}

    def _value(self, kind: int) -> object:
        if kind == _STRING:
            return self._string()
        if kind == _ARRAY:
            return self._array()
        return self._scalars(kind, 1)[0]

    def _array(self) -> list[object]:
        kind, count = self._u32(), self._u64()
        if kind == _STRING:
            return self._strings(count)
        if kind == _ARRAY:
            return [self._array() for _ in range(count)]
        return list(self._scalars(kind, count))

    def _scalars(self, kind: int, count: int) -> tuple[object, ...]:
        letter = _SCALARS.get(kind)
        if letter is None:
            raise ValueError(f"unknown value type {kind}")
        layout = f"<{count}{letter}"
        size = struct.calcsize(layout)
        # Checked first: a broken count must not make struct reserve terabytes.
        if self._at + size > len(self._view):
            raise ValueError(f"an array of {count} values runs past the end of the file")
        values = struct.unpack_from(layout, self._view, self._at)
        self._at += size
        return values

    def _string(self) -> str:
        size = self._u64()
        data = self._view[self._at : self._at + size]
        if len(data) != size:
            raise ValueError("a string runs past the end of the file")
        self._at += size
        return data.decode()

    def _strings(self, count: int) -> list[object]:
        # The hot loop of the file: one call per string costs twice as much.
        view, at, end = self._view, self._at, len(self._view)
        length_at = _U64.unpack_from
        items: list[object] = []
        for _ in range(count):
            start = at + 8
            at = start + length_at(view, at)[0]
            if at > end:
                raise ValueError("a string runs past the end of the file")
            items.append(view[start:at].decode())
        self._at = at
        return items

    def _u32(self) -> int:
        value: int = _U32.unpack_from(self._view, self._at)[0]
        self._at += 4
        return value

    def _u64(self) -> int:
        value: int = _U64.unpack_from(self._view, self._at)[0]
        self._at += 8
        return value
