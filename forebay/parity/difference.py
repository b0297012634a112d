"""The first difference between a recording and a replay."""

from dataclasses import dataclass


@dataclass(slots=True, frozen=True)
class Difference:
    """Field `field` of step `step` should be `expected`; the replay has `actual`."""

    step: int
    field: str
    expected: object
    actual: object
