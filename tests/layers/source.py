"""The project's own source files, read and parsed once for the layer tests."""

import ast
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SKIPPED_DIRS = {"__pycache__", "build", "dist"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One Python file: `name` is its dotted module name, `path` is relative to the root."""

    name: str
    path: str
    text: str
    tree: ast.Module
    is_package: bool = False


def snippet(text: str, *, name: str = "forebay.core.sample") -> Source:
    """A Source made from text, for showing that a check can fail."""
    path = name.replace(".", "/") + ".py"
    return Source(name=name, path=path, text=text, tree=ast.parse(text))


@cache
def project_files() -> tuple[Path, ...]:
    """Tracked files and new ones that git does not ignore; outside git, all but hidden ones."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True, text=True)
        found = [ROOT / name for name in listed.stdout.split("\0") if name]
    except (OSError, subprocess.CalledProcessError):
        found = [path for path in ROOT.rglob("*") if _is_shown(path.relative_to(ROOT))]
    return tuple(sorted(path for path in found if path.is_file()))


def _is_shown(path: Path) -> bool:
    return not any(part.startswith(".") or part in SKIPPED_DIRS for part in path.parts)


@cache
def python_sources(folder: str = "") -> tuple[Source, ...]:
    """Every project file ending in .py below `folder` (a path such as "forebay/core")."""
    top = ROOT / folder
    return tuple(_read(p) for p in project_files() if p.suffix == ".py" and p.is_relative_to(top))


def _read(path: Path) -> Source:
    relative = path.relative_to(ROOT)
    parts = relative.with_suffix("").parts
    is_package = parts[-1] == "__init__"
    text = path.read_text(encoding="utf-8")
    return Source(
        name=".".join(parts[:-1] if is_package else parts),
        path=str(relative),
        text=text,
        tree=ast.parse(text, filename=str(relative)),
        is_package=is_package,
    )
