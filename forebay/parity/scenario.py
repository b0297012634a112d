"""A scenario file: read, and its shape checked, so that a replay meets no surprise."""

import gzip
import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from forebay.errors import ForebayError

MAX_BYTES = 64 << 20
"""Larger files (unpacked) are refused; recordings have some hundred kilobytes."""
_GZIP_MAGIC = b"\x1f\x8b"


class ScenarioError(ForebayError):
    """A scenario file that cannot be read or replayed. The message says where and why."""


@dataclass(slots=True, frozen=True)
class Fields:
    """A JSON object with the name it goes by in messages; getters raise `ScenarioError`."""

    where: str
    values: Mapping[str, object]

    def whole(self, name: str, *, least: int = 0, default: int | None = None) -> int:
        """An integer of at least `least`."""
        value = self._get(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise self._wrong(name, value, f"a whole number of at least {least}")
        return value

    def integer(self, name: str) -> int:
        """Any integer."""
        value = self._get(name, None)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self._wrong(name, value, "an integer")
        return value

    def number(self, name: str, *, least: float = 0.0) -> float:
        """A number of at least `least`."""
        value = self._get(name, None)
        if isinstance(value, bool) or not isinstance(value, int | float) or not value >= least:
            raise self._wrong(name, value, f"a number of at least {least:g}")
        return float(value)

    def flag(self, name: str) -> bool:
        """True or false."""
        value = self._get(name, None)
        if not isinstance(value, bool):
            raise self._wrong(name, value, "true or false")
        return value

    def text(self, name: str) -> str:
        """A string."""
        value = self._get(name, None)
        if not isinstance(value, str):
            raise self._wrong(name, value, "a string")
        return value

    def items(self, name: str) -> list[object]:
        """A list of anything."""
        value = self._get(name, None)
        if not isinstance(value, list):
            raise self._wrong(name, value, "a list")
        return value

    def wholes(self, name: str) -> list[int]:
        """A list of integers of at least 0."""
        values = self.items(name)
        for value in values:
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise self._wrong(name, value, "a list of whole numbers")
        return values  # type: ignore[return-value]  # just checked

    def part(self, name: str) -> "Fields":
        """An object inside this one."""
        return self._object(f"{self.where} {name}", self._get(name, None))

    def parts(self, name: str) -> list["Fields"]:
        """A list of objects inside this one."""
        singular = f"{self.where} {name}"
        return [self._object(f"{singular}[{at}]", v) for at, v in enumerate(self.items(name))]

    def _get(self, name: str, default: object) -> object:
        if name not in self.values and default is None:
            raise ScenarioError(f"{self.where} lacks {name!r}")
        return self.values.get(name, default)

    def _wrong(self, name: str, value: object, expected: str) -> ScenarioError:
        return ScenarioError(f"{self.where} {name} is {shorten(value)}; it must be {expected}")

    @staticmethod
    def _object(where: str, value: object) -> "Fields":
        if not isinstance(value, dict):
            raise ScenarioError(f"{where} is {shorten(value)}; it must be an object")
        return Fields(where.strip(), value)


def shorten(value: object, most: int = 200) -> str:
    """A value as JSON, cut where it gets long."""
    text = json.dumps(value, default=str)
    return text if len(text) <= most else f"{text[:most]}..."


def read_scenario(path: Path) -> Fields:
    """The file's object; gzip or plain JSON. Raises `ScenarioError`."""
    try:
        with path.open("rb") as file:
            packed = file.read(2) == _GZIP_MAGIC
        with gzip.open(path) if packed else path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise ScenarioError(f"cannot be read: {error}") from error
    if len(raw) > MAX_BYTES:
        raise ScenarioError(f"cannot be read: it has more than {MAX_BYTES >> 20} MiB")
    try:
        values = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise ScenarioError(f"is no JSON: {error}") from error
    if not isinstance(values, dict):
        raise ScenarioError("is no scenario: its JSON is no object")
    return Fields("", values)
