"""Named values of one file, each fetched with its type; what is wrong is said by file and key."""

import math
from collections.abc import Mapping
from typing import TypeVar

from forebay.errors import ModelError

_Value = TypeVar("_Value", int, float, str)


class Fields:
    """Typed view of `values`; `file` and the key are named in every ModelError.

    A key that is absent or null gives the default; without a default it raises.
    """

    def __init__(self, file: str, values: Mapping[str, object]) -> None:
        self.file = file
        self._values = values

    def get(self, key: str) -> object:
        """The raw value, or None."""
        return self._values.get(key)

    def integer(self, key: str, default: int | None = None) -> int:
        """A whole number."""
        found = self.optional_integer(key)
        return self._present(key, default if found is None else found)

    def optional_integer(self, key: str) -> int | None:
        """A whole number or None."""
        value = self._values.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.wrong(key, "a whole number")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A finite number, whole or not."""
        value = self._values.get(key)
        if value is None:
            return self._present(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.wrong(key, "a number")
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if not math.isfinite(number):
            raise self.wrong(key, "a finite number")
        return number

    def flag(self, key: str, *, default: bool) -> bool:
        """True or false."""
        value = self._values.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.wrong(key, "true or false")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        """A string."""
        value = self._values.get(key)
        if value is None:
            return self._present(key, default)
        if not isinstance(value, str):
            raise self.wrong(key, "a string")
        return value

    def integers(self, key: str) -> tuple[int, ...]:
        """A whole number or a list of them, as a tuple; empty when absent."""
        value = self._values.get(key)
        if value is None:
            return ()
        items = value if isinstance(value, list) else [value]
        if any(isinstance(item, bool) or not isinstance(item, int) for item in items):
            raise self.wrong(key, "a whole number or a list of them")
        return tuple(items)

    def nested(self, key: str) -> "Fields | None":
        """The object under `key`, or None."""
        value = self._values.get(key)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise self.wrong(key, "an object")
        return Fields(f"{self.file}: {key}", value)

    def wrong(self, key: str, wanted: str) -> ModelError:
        """The error for a value that is not `wanted`."""
        return ModelError(f"{self.file}: {key} is {self._values.get(key)!r}, should be {wanted}")

    def _present(self, key: str, value: _Value | None) -> _Value:
        if value is None:
            raise ModelError(f"{self.file}: {key} is missing")
        return value
