"""Run as a module: the workload in a process of its own, its outputs as one JSON line."""

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

from forebay.llm import RequestOutput
from tests.exactness.mixed import opener
from tests.exactness.workload import mixed_workload, together


def plain(outputs: list[RequestOutput]) -> list[Any]:
    """All that a caller sees of the outputs, as JSON knows it."""
    seen = [[dataclasses.asdict(one) for one in output.outputs] for output in outputs]
    known: list[Any] = json.loads(json.dumps(seen))
    return known


def _main(model: str, num_blocks: str, num_threads: str) -> None:
    settings = {"num_gpu_blocks_override": int(num_blocks), "num_threads": int(num_threads)}
    with opener(Path(model))(**settings) as llm:
        print(json.dumps(plain(together(llm, mixed_workload(llm)))))


if __name__ == "__main__":
    _main(*sys.argv[1:])
