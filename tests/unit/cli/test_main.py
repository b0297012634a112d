import subprocess
import sys

import pytest

from forebay import __version__
from forebay.cli import bench
from forebay.cli.main import build_parser, main
from forebay.errors import CapacityError, DeviceFault


def status_of(*argv: str) -> int:
    """The exit status, also where argparse leaves by itself."""
    try:
        return main(argv)
    except SystemExit as leaving:
        return int(leaving.code or 0)


def test_the_version_is_the_packages(capsys: pytest.CaptureFixture[str]) -> None:
    assert status_of("--version") == 0
    assert capsys.readouterr().out == f"forebay {__version__}\n"


@pytest.mark.parametrize(
    ("argv", "complaint"),
    [
        (["bench", "--kv-token", "3"], "unknown option --kv-token; did you mean --kv-tokens?"),
        (["bench", "--kv_tokens=3"], "did you mean --kv-tokens?"),
        (["bench", "--zzz"], "unknown option --zzz"),
        (["bench", "extra"], "unexpected argument 'extra'"),
        (["bench", "--requests", "0"], "0 should be at least 1"),
        (["bench", "--requests", "many"], "'many' is no whole number"),
        (["bench", "--preemption", "abort"], "invalid choice: 'abort'"),
        (["bench", "--steps-in-flight", "4"], "invalid choice: 4"),
        (["bench", "--seed", "-1"], "-1 should be at least 0"),
        (["demo", "--jsn"], "did you mean --json?"),
        (["bnch"], "invalid choice: 'bnch'"),
        ([], "COMMAND"),
    ],
)
def test_a_wrong_command_line_is_answered_in_two_lines(
    argv: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status_of(*argv) == 2
    out, err = capsys.readouterr()
    assert complaint in err
    assert len(err.splitlines()) == 2
    assert not out


def test_errors_are_one_line_and_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(error: BaseException) -> None:
        def run(arguments: object) -> int:
            raise error

        monkeypatch.setattr(bench, "run", run)

    fail(CapacityError("the pool is too small"))
    assert status_of("bench") == 2
    fail(DeviceFault("it burnt"))
    assert status_of("bench") == 1
    fail(KeyboardInterrupt())
    assert status_of("bench") == 130
    assert capsys.readouterr().err.splitlines() == [
        "forebay: the pool is too small",
        "forebay: it burnt",
        "forebay: interrupted",
    ]


def test_every_option_has_help() -> None:
    for name, command in build_parser().commands.items():
        for action in command._actions:
            assert action.help, f"{name} {action.dest}"


def test_the_module_is_the_command() -> None:
    found = subprocess.run(
        [sys.executable, "-m", "forebay", "--version"], check=True, capture_output=True, text=True
    )
    assert found.stdout == f"forebay {__version__}\n"
