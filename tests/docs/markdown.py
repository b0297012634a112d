"""What a Markdown file refers to: files, headings, and places in the source code."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)(?:\s+\"[^\"]*\")?\)")
OUTSIDE = re.compile(r"^[a-z][a-z0-9+.-]*:")  # https:, mailto:
FENCE = re.compile(r"^(`{3,}|~{3,})(.*?)^\1", re.MULTILINE | re.DOTALL)
# `core/scheduler.py:plan` or `forebay/core/scheduler.py:Scheduler.plan`; a file alone as well.
PLACE = re.compile(r"`([\w./-]+\.py)(?::([A-Za-z_][\w.]*))?(?:\(\))?`")


def broken_links(document: Path) -> list[str]:
    """Links of `document` to files or headings that do not exist."""
    return [
        f"{document.name}: {target} {fault}"
        for target in LINK.findall(FENCE.sub("", document.read_text(encoding="utf-8")))
        if not OUTSIDE.match(target) and (fault := _link_fault(document, target))
    ]


def _link_fault(document: Path, target: str) -> str:
    path, _, heading = target.partition("#")
    linked = document.parent / path if path else document
    if not linked.exists():
        return "does not exist"
    if heading and linked.suffix == ".md" and heading not in _headings(linked):
        return "has no such heading"
    return ""


def _headings(document: Path) -> set[str]:
    """The anchors that GitHub gives to a document's headings."""
    text = FENCE.sub("", document.read_text(encoding="utf-8"))
    titles = re.findall(r"^#+\s+(.*?)\s*$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def places(document: Path) -> list[tuple[str, str]]:
    """Pairs of file and function ("" for the file alone) that `document` names in backticks."""
    return PLACE.findall(document.read_text(encoding="utf-8"))


def missing_places(document: Path, root: Path) -> list[str]:
    """Files and functions that `document` names and that are not there.

    A path starts at `root` or at `root`/forebay. A function is named alone or with its class.
    """
    return [
        f"{document.name}: {path}{':' * bool(name)}{name} {fault}"
        for path, name in places(document)
        if (fault := _place_fault(root, path, name))
    ]


def _place_fault(root: Path, path: str, name: str) -> str:
    found = next((p for p in (root / path, root / "forebay" / path) if p.is_file()), None)
    if found is None:
        return "is no file"
    if name and name not in _definitions(ast.parse(found.read_text(encoding="utf-8"))):
        return "is not defined there"
    return ""


def _definitions(tree: ast.Module) -> set[str]:
    names = set(_qualified(tree, ""))
    return names | {name.rpartition(".")[2] for name in names}


def _qualified(node: ast.AST, prefix: str) -> Iterator[str]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield prefix + child.name
            yield from _qualified(child, f"{prefix}{child.name}.")


def tree_entries(text: str) -> list[str]:
    """Paths in an annotated tree: two spaces per level, a name, then what it is for.

    Folders end in a slash. An entry may hold several names, set apart by one space.
    """
    entries: list[str] = []
    above: list[str] = []
    for line in filter(str.strip, text.splitlines()):
        depth = (len(line) - len(line.lstrip())) // 2
        names = re.split(r"\s{2,}", line.strip())[0].split(" ")
        above[depth:] = [names[0]]
        entries += ["".join(above[:depth]) + name for name in names]
    return entries
