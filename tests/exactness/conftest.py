"""The tiny model on disk, and what each request of the mixed workload gives by itself."""

from pathlib import Path

import pytest

from tests.exactness.mixed import Mixed, Opener, opener, run_alone
from tests.support.tiny_llm import save_tiny_llm


@pytest.fixture(scope="session")
def tiny_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_llm(tmp_path_factory.mktemp("exactness") / "tiny.gguf")


@pytest.fixture(scope="session")
def open_tiny(tiny_path: Path) -> Opener:
    return opener(tiny_path)


@pytest.fixture(scope="session")
def mixed(open_tiny: Opener) -> Mixed:
    return run_alone(open_tiny)
