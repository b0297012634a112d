"""Check a module's imports against the table of layers."""

import ast
import sys
from collections.abc import Iterator, Set
from dataclasses import dataclass

from tests.layers.source import Source
from tests.layers.table import STDLIB, TABLE, Row


@dataclass(frozen=True, slots=True, kw_only=True)
class Import:
    """One imported module; `is_lazy` when it happens in a function or for type checkers only."""

    target: str
    line: int
    is_lazy: bool


def row_for(name: str) -> Row | None:
    """The row with the longest matching name; the row of `forebay` is for __init__.py alone."""
    if name == "forebay":
        return TABLE["forebay"]
    keys = [key for key in TABLE if key != "forebay" and _covers(key, name)]
    return TABLE[max(keys, key=len)] if keys else None


def violations(source: Source, known: Set[str]) -> list[str]:
    """What `source` imports and may not; `known` holds the names of all our modules."""
    row = row_for(source.name)
    if row is None:
        return [
            f"{source.path}: no row covers {source.name}; add one to TABLE in tests/layers/table.py"
        ]
    return [
        f"{source.path}:{found.line}: {source.name} may not import {found.target}"
        f"{'' if found.is_lazy else ' at module level'} ({row.why}); see tests/layers/table.py"
        for found in imports_of(source, known)
        if not _is_allowed(found, row)
    ]


def imports_of(source: Source, known: Set[str]) -> list[Import]:
    """All imports anywhere in the file; a submodule taken by `from x import y` is named x.y."""
    return [
        Import(target=target, line=node.lineno, is_lazy=is_lazy)
        for node, is_lazy in _import_nodes(source.tree, is_lazy=False)
        for target in _targets(node, source, known)
    ]


def _is_allowed(found: Import, row: Row) -> bool:
    if any(_covers(name, found.target) for name in row.never):
        return False
    allowed = row.may + row.lazily if found.is_lazy else row.may
    if STDLIB in allowed and found.target.partition(".")[0] in sys.stdlib_module_names:
        return True
    return any(_covers(name, found.target) for name in allowed)


def _covers(name: str, target: str) -> bool:
    return target == name or target.startswith(name + ".")


def _import_nodes(
    node: ast.AST, *, is_lazy: bool
) -> Iterator[tuple[ast.Import | ast.ImportFrom, bool]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import | ast.ImportFrom):
            yield child, is_lazy
            continue
        is_function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
        for_types = isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)
        yield from _import_nodes(child, is_lazy=is_lazy or is_function or for_types)


def _targets(node: ast.Import | ast.ImportFrom, source: Source, known: Set[str]) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
        return
    origin = node.module or ""
    if node.level:
        package = source.name.split(".") + ([""] if source.is_package else [])
        origin = ".".join(filter(None, [*package[: -node.level], origin]))
    for alias in node.names:
        submodule = f"{origin}.{alias.name}"
        yield submodule if submodule in known else origin
