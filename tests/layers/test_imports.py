"""The layers hold: each module imports only what its row in the table allows."""

import subprocess
import sys

import pytest

from tests.layers import imports
from tests.layers.source import ROOT, python_sources, snippet
from tests.layers.table import TABLE

KNOWN = frozenset(source.name for source in python_sources("forebay"))

LOOK_AT_IMPORT = """
import sys, threading, time
before = time.process_time()
import forebay
spent = time.process_time() - before
import forebay.core.scheduler
heavy = {"torch", "numba", "tokenizers", "transformers", "gguf", "safetensors", "jinja2"}
assert not heavy & set(sys.modules), f"loaded: {heavy & set(sys.modules)}"
assert threading.active_count() == 1, f"threads: {threading.enumerate()}"
assert spent < 0.5, f"import forebay took {spent:.2f} s of processor time"
"""


def test_every_module_keeps_to_its_layer() -> None:
    faults = [fault for s in python_sources("forebay") for fault in imports.violations(s, KNOWN)]
    assert not faults, "\n".join(faults)


def test_importing_forebay_and_its_core_loads_no_extra_and_starts_nothing() -> None:
    command = [sys.executable, "-c", LOOK_AT_IMPORT]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("module", "text"),
    [
        ("forebay.core.kv", "import torch"),
        ("forebay.core.kv", "from time import monotonic"),
        ("forebay.core.kv", "def draw():\n    import random"),
        ("forebay.core.kv", "from ..exec import runner"),
        ("forebay.core.kv", "from forebay import config"),
        ("forebay.core.kv", "if True:\n    import logging as quiet"),
        ("forebay.core.kv", "import importlib"),
        ("forebay.core.kv", "import numpy as np"),
        ("forebay.engine.turn", "import time"),
        ("forebay.engine.live", "import torch"),
        ("forebay.exec.runner", "from forebay.core.scheduler import Scheduler"),
        ("forebay.exec.runner", "from forebay.engine import live"),
        ("forebay.text.chat", "import torch"),
        ("forebay.cli.bench", "import torch"),
        ("forebay.cli.bench", "from forebay.exec.runner import Runner"),
        ("forebay.cli.bench", "def run():\n    import forebay.core.scheduler"),
        ("forebay", "from forebay.llm import LLM"),
        ("forebay.brand_new", "x = 1"),
    ],
)
def test_a_forbidden_import_is_found(module: str, text: str) -> None:
    names = KNOWN | {"forebay.config", "forebay.exec.runner", "forebay.engine.live"}
    assert imports.violations(snippet(text, name=module), names)


@pytest.mark.parametrize(
    ("module", "text"),
    [
        ("forebay.core.kv", "from collections.abc import Iterator\nimport heapq"),
        ("forebay.core.kv", "from . import blocks\nfrom forebay.units import Nanos"),
        ("forebay.engine.live", "import time, queue\nfrom forebay.core import scheduler"),
        ("forebay.exec.runner", "import torch\nfrom forebay.core.effects import RunStep"),
        ("forebay.cli.bench", "def run():\n    from forebay.exec.runner import Runner"),
        ("forebay", "if TYPE_CHECKING:\n    from forebay.llm import LLM"),
    ],
)
def test_an_allowed_import_passes(module: str, text: str) -> None:
    names = KNOWN | {"forebay.core.blocks", "forebay.core.scheduler"}
    assert imports.violations(snippet(text, name=module), names) == []


def test_a_package_without_a_row_is_told_where_to_add_one() -> None:
    (message,) = imports.violations(snippet("x = 1", name="forebay.brand_new.part"), KNOWN)
    assert "TABLE in tests/layers/table.py" in message


def test_the_longest_matching_row_governs() -> None:
    assert imports.row_for("forebay.engine.live") is TABLE["forebay.engine.live"]
    assert imports.row_for("forebay.engine.turn") is TABLE["forebay.engine"]
    assert imports.row_for("forebay.core.loops.default") is TABLE["forebay.core"]
    assert imports.row_for("forebay") is TABLE["forebay"]
