"""How long files and functions are, and which are too long."""

import ast
from collections.abc import Iterable
from dataclasses import dataclass

from tests.layers.source import Source

MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """Lines of one file (all of them) or one function (without decorators and docstring)."""

    num_lines: int
    limit: int
    what: str


def sizes(source: Source) -> list[Size]:
    """The file's size, then that of each function in it, nested ones too."""
    num_lines = len(source.text.splitlines())
    found = [Size(num_lines=num_lines, limit=MAX_FILE_LINES, what=source.path)]
    for node in ast.walk(source.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            what = f"{source.path}:{node.lineno} {node.name}()"
            found.append(Size(num_lines=_function_lines(node), limit=MAX_FUNCTION_LINES, what=what))
    return found


def report(sources: Iterable[Source], *, num_shown: int = 10) -> str:
    """Empty when all fit; else a table of what is over its limit and of the largest others."""
    every = [size for source in sources for size in sizes(source)]
    if all(size.num_lines <= size.limit for size in every):
        return ""
    every.sort(key=lambda size: size.num_lines / size.limit, reverse=True)
    num_over = sum(size.num_lines > size.limit for size in every)
    shown = every[: num_over + num_shown]
    rows = [f"{size.num_lines:6d} of {size.limit:3d}  {size.what}" for size in shown]
    return f"{num_over} over the limit; the largest:\n" + "\n".join(rows)


def _function_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    num_lines = (node.end_lineno or node.lineno) - node.lineno + 1
    if ast.get_docstring(node, clean=False) is not None:
        docstring = node.body[0]
        num_lines -= (docstring.end_lineno or docstring.lineno) - docstring.lineno + 1
    return num_lines
