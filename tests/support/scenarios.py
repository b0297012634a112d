"""Golden scenario files by family, and altered copies of them."""

import copy
import gzip
import json
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

GOLDEN = Path(__file__).parents[1] / "golden"


def families(kind: str) -> dict[str, list[Path]]:
    """The scenario files of a kind (a folder's name) by family."""
    found: dict[str, list[Path]] = defaultdict(list)
    for path in sorted((GOLDEN / kind).glob("*.json.gz")):
        found[path.name.rpartition("-")[0]].append(path)
    return dict(found)


def altered(path: Path, into: Path, alter: Callable[[Any], None]) -> Path:
    """A copy of a scenario with a change."""
    with gzip.open(path) as file:
        scenario = copy.deepcopy(json.load(file))
    alter(scenario)
    target = into / path.name.removesuffix(".gz")
    target.write_text(json.dumps(scenario))
    return target
