"""Compares a replay with its recording, step by step and field by field."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from forebay.errors import ForebayError
from forebay.parity.scenario import Fields, ScenarioError, read_scenario, shorten

SUFFIXES = (".json", ".json.gz")


class Replay(Protocol):
    """One run of a scenario through the core."""

    required: tuple[str, ...]
    """Fields that every recorded step must have."""

    def steps(self) -> Iterator[Mapping[str, object]]:
        """Each step's fields, as the recording has them, until nothing is left to do."""

    def totals(self) -> Mapping[str, object]:
        """The fields of the whole run, after its last step."""


@dataclass(slots=True, frozen=True)
class Kind:
    """A form of scenario: how to know it, and what replays it."""

    name: str
    reference: str
    """What the scenario's `reference` begins with."""
    replay: Callable[[Fields], Replay]


@dataclass(slots=True, frozen=True)
class Difference:
    """The first difference. `step` is None for a field of the whole run."""

    step: int | None
    field: str
    recorded: object
    replayed: object

    def __str__(self) -> str:
        where = "whole run" if self.step is None else f"step {self.step}"
        recorded, replayed = shorten(self.recorded), shorten(self.replayed)
        return f"{where}, {self.field}: recorded {recorded}, replayed {replayed}"


@dataclass(slots=True, frozen=True)
class Outcome:
    """What became of one file: `fault` is None if every recorded field was met."""

    path: Path
    fault: str | None


def replay_file(path: Path, kinds: Iterable[Kind]) -> Outcome:
    """Replays one file. Whatever is wrong with the file is a fault of the outcome."""
    try:
        difference = first_difference(read_scenario(path), kinds)
    except ForebayError as error:
        return Outcome(path, str(error))
    return Outcome(path, None if difference is None else str(difference))


def first_difference(scenario: Fields, kinds: Iterable[Kind]) -> Difference | None:
    """Where a scenario's replay first differs from the recording, if anywhere.

    Raises: ScenarioError if the scenario is malformed or of no known kind.
    """
    reference = scenario.text("reference")
    kind = next((kind for kind in kinds if reference.startswith(kind.reference)), None)
    if kind is None:
        raise ScenarioError(f"reference {shorten(reference)} is of no kind that can be replayed")
    replay = kind.replay(scenario)
    recorded = scenario.parts("steps")
    if not recorded:
        raise ScenarioError("has no steps")
    for fields in recorded:
        for name in replay.required:
            if name not in fields.values:
                raise ScenarioError(f"{fields.where} lacks {name!r}")
    return _compare_steps(recorded, replay, stuck=bool(scenario.values.get("stuck"))) or _compare(
        None, scenario.values, replay.totals()
    )


def _compare_steps(recorded: list[Fields], replay: Replay, *, stuck: bool) -> Difference | None:
    replayed = replay.steps()
    for at, fields in enumerate(recorded):
        step = next(replayed, None)
        if step is None:
            return Difference(None, "number of steps", len(recorded), at)
        unknown = [name for name in fields.values if name not in step]
        if unknown:
            raise ScenarioError(f"{fields.where} has a field {unknown[0]!r} that no replay has")
        difference = _compare(at, fields.values, step)
        if difference is not None:
            return difference
    if not stuck and next(replayed, None) is not None:
        return Difference(None, "number of steps", len(recorded), "more")
    return None


def _compare(
    step: int | None, recorded: Mapping[str, object], replayed: Mapping[str, object]
) -> Difference | None:
    for name, value in replayed.items():
        if name in recorded and recorded[name] != value:
            return Difference(step, name, recorded[name], value)
    return None


def scenario_files(paths: Iterable[Path]) -> list[Path]:
    """The files named, and those in the folders named, at any depth, sorted within each."""
    files: list[Path] = []
    for path in paths:
        if path.is_dir():
            inside = (file for file in path.rglob("*") if file.name.endswith(SUFFIXES))
            files.extend(sorted(file for file in inside if file.is_file()))
        else:
            files.append(path)
    return files
