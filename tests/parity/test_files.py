"""Files and folders that `forebay parity` is given, and what it prints."""

import gzip
import shutil
from pathlib import Path
from typing import Any

import pytest

from forebay.cli.main import main
from forebay.parity import scenario
from forebay.parity.kinds import KINDS
from forebay.parity.replay import replay_file, scenario_files
from tests.support.scenarios import altered, families

FCFS = families("vllm-v1")["fcfs"]


def test_a_folder_with_a_good_a_changed_and_a_broken_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def flip(changed: Any) -> None:
        changed["steps"][2]["free_blocks"] += 1

    shutil.copy(FCFS[0], tmp_path / "good.json.gz")
    (tmp_path / "deeper").mkdir()
    altered(FCFS[1], tmp_path / "deeper", flip)
    (tmp_path / "broken.json").write_text("{")
    (tmp_path / "README.md").write_text("no scenario")
    assert main(["parity", str(tmp_path)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert lines[0].startswith(f"{tmp_path / 'broken.json'}: is no JSON")
    assert "step 2, free_blocks: recorded" in lines[1]
    assert lines[2] == "1 passed, 2 failed"


def test_all_good_files_leave_one_line_and_status_0(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["parity", *map(str, FCFS[:2])]) == 0
    assert capsys.readouterr().out == "2 passed, 0 failed\n"


def test_a_missing_file_counts_and_an_empty_folder_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["parity", str(tmp_path / "none.json")]) == 1
    assert capsys.readouterr().out.splitlines()[-1] == "0 passed, 1 failed"
    assert main(["parity", str(tmp_path)]) == 2
    assert "no scenario file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.json", b"", "is no JSON"),
        ("a.json", b"\xff\xfe", "is no JSON"),
        ("a.json", b"[" * 100_000, "is no JSON"),
        ("a.json", b"[1]", "its JSON is no object"),
        ("a.json.gz", b"\x1f\x8b\x08 cut", "cannot be read"),
        ("a.json.gz", gzip.compress(b"{}" * 99)[:-9], "cannot be read"),
        ("a.json", b"{}", "lacks 'reference'"),
    ],
)
def test_files_that_are_no_scenario(name: str, content: bytes, said: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    fault = replay_file(path, KINDS).fault
    assert fault is not None
    assert said in fault


def test_a_file_that_unpacks_to_too_much_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scenario, "MAX_BYTES", 1 << 20)
    path = tmp_path / "bomb.json.gz"
    path.write_bytes(gzip.compress(b" " * (2 << 20)))
    fault = replay_file(path, KINDS).fault
    assert fault == "cannot be read: it has more than 1 MiB"


def test_a_folder_is_searched_at_any_depth_and_named_files_are_taken_as_they_are(
    tmp_path: Path,
) -> None:
    (tmp_path / "b").mkdir()
    for name in ("b/2.json.gz", "1.json", "notes.txt"):
        (tmp_path / name).touch()
    named = tmp_path / "notes.txt"
    assert scenario_files([tmp_path, named]) == [
        tmp_path / "1.json",
        tmp_path / "b" / "2.json.gz",
        named,
    ]
