"""No file names a package registry or a path of somebody's machine."""

import re
from pathlib import Path

import pytest

from tests.layers.source import ROOT, project_files

# Written in parts, so that this file passes its own check.
HOSTS = (
    *("pypi" + ".org", "python" + "hosted.org", "download.py" + "torch.org", "ana" + "conda.org"),
    *("hugging" + "face.co", "model" + "scope.cn", "npm" + "js.org", "crates" + ".io"),
    *("docker" + ".io", "gh" + "cr.io", "quay" + ".io", "proxy.go" + "lang.org"),
)
HOST = re.compile("|".join(re.escape(host) for host in HOSTS), re.IGNORECASE)
# A path from the root: not the end of a longer one such as net/work/.
MACHINE_PATH = re.compile(r"(?<![\w.~$})-])/(?:root|work|home/\w+|Users/\w+|opt/(?:wheels|py\w+))/")


def faults(text: str, path: str) -> list[str]:
    """Lines that name a registry or a machine path."""
    return [
        f"{path}:{number}: names {found[0]}"
        for number, line in enumerate(text.splitlines(), start=1)
        for pattern in (HOST, MACHINE_PATH)
        if (found := pattern.search(line))
    ]


def _read_text(path: Path) -> str:
    data = path.read_bytes()
    return "" if b"\0" in data[:4096] else data.decode("utf-8", errors="replace")


def test_no_file_names_a_registry_or_a_machine_path() -> None:
    found = [f for p in project_files() for f in faults(_read_text(p), str(p.relative_to(ROOT)))]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "text",
    [
        "see https://py" + "pi.org/project/x",
        "--index-url https://download.py" + "torch.org/whl/cpu",
        "cache = '/ro" + "ot/.cache'",
        "cd /wo" + "rk/main",
        "PATH=/wo" + "rk/bin:/usr/bin",
        "/home/some" + "body/forebay",
    ],
)
def test_a_registry_or_machine_path_is_found(text: str) -> None:
    assert faults(text, "sample")


@pytest.mark.parametrize(
    "text", ["net/work/x", "artwork/", "https://example.org/work/item", "/tmp/x"]
)
def test_other_text_passes(text: str) -> None:
    assert faults(text, "sample") == []
