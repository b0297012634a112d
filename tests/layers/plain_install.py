"""Run inside an environment made by `pip install .` alone: the core works without any extra.

Called by `make test-install`; not collected by pytest.
"""

import importlib
import importlib.util
import pkgutil
import subprocess
import sys
from pathlib import Path

EXTRAS_ONLY = ("torch", "numba", "gguf", "safetensors", "tokenizers", "jinja2")


def main() -> None:
    present = [name for name in EXTRAS_ONLY if importlib.util.find_spec(name)]
    assert not present, f"not a plain install: {present} can be imported"

    forebay = importlib.import_module("forebay")
    assert "site-packages" in str(forebay.__file__), f"not installed: {forebay.__file__}"
    assert Path(str(forebay.__file__)).with_name("py.typed").exists(), "py.typed is not shipped"

    core = importlib.import_module("forebay.core")
    names = [info.name for info in pkgutil.walk_packages(core.__path__, "forebay.core.")]
    for name in names:
        importlib.import_module(name)

    command = Path(sys.executable).with_name("forebay")
    subprocess.run([command, "--help"], check=True, stdout=subprocess.DEVNULL)
    print(f"plain install: forebay {forebay.__version__}, {len(names)} core modules, no torch")


if __name__ == "__main__":
    main()
