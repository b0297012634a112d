"""The metadata of a GGUF file with typed getters that name what is wrong."""

from collections.abc import Iterator
from os import PathLike
from pathlib import Path
from typing import TypeVar

from forebay.errors import ModelError
from forebay.gguf_header import read_gguf_header

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

    Raises ModelError when the file is missing, is no GGUF, or breaks off inside its head.
    """
    return GgufMetadata(read_gguf_header(Path(path)).values, source=str(path))
