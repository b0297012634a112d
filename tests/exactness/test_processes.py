"""Another process and another number of threads give the same outputs, to the last bit."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.exactness.fresh_process import plain
from tests.exactness.mixed import Mixed, Opener
from tests.exactness.workload import together


@pytest.mark.slow
def test_a_fresh_process_with_two_threads_gives_the_same(
    mixed: Mixed, tiny_path: Path, open_tiny: Opener
) -> None:
    with open_tiny(num_gpu_blocks_override=mixed.share(3)) as llm:
        if "NOT" in llm.startup.products:
            pytest.skip(f"this machine: {llm.startup.products}")
        here = plain(together(llm, mixed.requests))
    command = [sys.executable, "-m", "tests.exactness.fresh_process", str(tiny_path)]
    ran = subprocess.run(
        [*command, str(mixed.share(2)), "2"], capture_output=True, text=True, timeout=120
    )
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout) == here
