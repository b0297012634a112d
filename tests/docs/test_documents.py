"""What the documents say about the repository is so."""

from pathlib import Path

import pytest

from tests.docs import markdown
from tests.layers.source import ROOT, project_files

DOCUMENTS = [path for path in project_files() if path.suffix == ".md"]
WALK = ROOT / "docs" / "walk.md"
# Marks what is still to be written or measured, as in <!-- FILL: output of make demo -->.
UNFINISHED = "<!-- FILL" + ":"


def _by_path(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("document", DOCUMENTS, ids=_by_path)
def test_links_lead_somewhere(document: Path) -> None:
    assert not markdown.broken_links(document)


@pytest.mark.parametrize("document", DOCUMENTS, ids=_by_path)
def test_files_and_functions_named_in_backticks_exist(document: Path) -> None:
    assert not markdown.missing_places(document, ROOT)


def test_the_walk_names_functions() -> None:
    named = [name for _, name in markdown.places(WALK) if name]
    assert len(named) >= 10, f"{WALK.name} walks a request by file and function: {named}"


@pytest.mark.parametrize("document", DOCUMENTS, ids=_by_path)
def test_nothing_is_left_to_fill(document: Path) -> None:
    assert UNFINISHED not in document.read_text(encoding="utf-8")


def test_the_readme_draws_the_tree_as_it_is() -> None:
    _, _, rest = (ROOT / "README.md").read_text(encoding="utf-8").partition("\n```text\nforebay/")
    entries = markdown.tree_entries("forebay/" + rest.partition("\n```")[0])
    missing = [entry for entry in entries if not (ROOT / entry).exists()]
    assert len(entries) > 5
    assert not missing


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "forebay").mkdir()
    code = "class Loop:\n    def plan(self): ...\ndef turn(): ...\n"
    (tmp_path / "forebay" / "loop.py").write_text(code)
    (tmp_path / "other.md").write_text("# What it *is*, in short\n")
    return tmp_path


@pytest.mark.parametrize("link", ["none.md", "other.md#nothing", "#nowhere", "other.md/more"])
def test_a_broken_link_is_found(folder: Path, link: str) -> None:
    document = folder / "sample.md"
    document.write_text(f"See [this]({link}).\n")
    assert markdown.broken_links(document)


def test_good_links_and_samples_pass(folder: Path) -> None:
    document = folder / "sample.md"
    document.write_text(
        "# Here\n[a](other.md) [b](other.md#what-it-is-in-short) [c](#here)\n"
        "[d](https://example.org/x) [e](forebay)\n```\n[f](none.md)\n```\n"
    )
    assert markdown.broken_links(document) == []


@pytest.mark.parametrize("place", ["none.py", "loop.py:stop", "loop.py:Loop.turn", "none.py:plan"])
def test_a_missing_place_is_found(folder: Path, place: str) -> None:
    document = folder / "sample.md"
    document.write_text(f"1. `{place}` decides.\n")
    assert markdown.missing_places(document, folder)


def test_places_that_exist_pass(folder: Path) -> None:
    document = folder / "sample.md"
    document.write_text("`loop.py` `loop.py:plan` `forebay/loop.py:Loop.plan` `loop.py:turn()`\n")
    assert len(markdown.places(document)) == 4
    assert markdown.missing_places(document, folder) == []


def test_a_tree_is_read_by_its_indentation() -> None:
    text = "forebay/\n  core/      the machine\n    kv.py    tables\n  units.py errors.py  leaves\n"
    names = ["forebay/", "forebay/core/", "forebay/core/kv.py"]
    assert markdown.tree_entries(text) == [*names, "forebay/units.py", "forebay/errors.py"]
