"""Where a model is, told by the path alone: nothing is opened, and torch is not needed."""

from pathlib import Path

from forebay.errors import ModelError


def find_model(path: Path) -> Path:
    """The GGUF file, or the directory with a config.json, that `path` means.

    A directory without config.json stands for the one GGUF file in it. Raises ModelError when
    nothing is there, or nothing that can be loaded.
    """
    if not path.exists():
        raise ModelError(
            f"no model at {path}: give a .gguf file or a directory with config.json; "
            "models are not downloaded by name"
        )
    if path.is_file() or (path / "config.json").exists():
        return path
    files = sorted(path.glob("*.gguf"))
    if len(files) == 1:
        return files[0]
    if files:
        raise ModelError(
            f"{path} holds {len(files)} GGUF files; name one of them, such as {files[0]}"
        )
    raise ModelError(f"{path} holds neither config.json nor a .gguf file")
