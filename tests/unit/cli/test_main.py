import os
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


def test_what_cannot_be_written_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(arguments: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(bench, "run", run)
    assert status_of("bench") == 1
    assert capsys.readouterr().err == "forebay: [Errno 28] No space left on device\n"


@pytest.mark.parametrize("num_chars", [10, 1_000_000])
def test_a_reader_that_has_gone_is_no_error_to_tell(num_chars: int) -> None:
    code = (
        "import sys\n"
        "from forebay.cli import bench, main\n"
        f"bench.run = lambda arguments: print('x' * {num_chars}) or 0\n"
        "sys.exit(main.main(['bench']))\n"
    )
    reading, writing = os.pipe()
    os.close(reading)
    environment = {**os.environ, "PYTHONUNBUFFERED": ""}
    found = subprocess.run(
        [sys.executable, "-c", code],
        stdout=writing,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        check=False,
    )
    os.close(writing)
    assert (found.returncode, found.stderr) == (1, "")


def test_without_any_output_a_command_still_runs() -> None:
    code = (
        "import sys\n"
        "from forebay.cli import bench, main\n"
        "sys.stdout = None\n"
        "bench.run = lambda arguments: 0\n"
        "sys.exit(main.main(['bench']))\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_every_option_has_help() -> None:
    for name, command in build_parser().commands.items():
        for action in command._actions:
            assert action.help, f"{name} {action.dest}"


def test_the_module_is_the_command() -> None:
    found = subprocess.run(
        [sys.executable, "-m", "forebay", "--version"], check=True, capture_output=True, text=True
    )
    assert found.stdout == f"forebay {__version__}\n"
