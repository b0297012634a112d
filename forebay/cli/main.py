"""`forebay`: finds the command, runs it, and turns errors into one clear line."""

import argparse
import difflib
import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import NoReturn

from forebay.cli import bench, demo, parity
from forebay.errors import ConfigError, ForebayError

OK, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit status: 2 for usage and settings, 1 for failures."""
    parser = build_parser()
    arguments = parser.parse_args(argv)
    run: Callable[[argparse.Namespace], int] = arguments.run
    try:
        status = run(arguments)
        # What is still buffered may fail as well, and should fail here.
        print(end="", flush=True)
        return status
    except ConfigError as error:
        return _complain(error, USAGE)
    except ForebayError as error:
        return _complain(error, FAILED)
    except KeyboardInterrupt:
        print("forebay: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # as in `forebay bench | head -1`
        _discard_output()
        return FAILED
    except OSError as error:  # such as a disk that is full
        _discard_output()
        return _complain(error, FAILED)


def build_parser() -> "Parser":
    """The command line as argparse sees it."""
    parser = Parser(
        prog="forebay",
        description="An LLM serving engine whose scheduler loses nothing when the KV cache "
        "runs out.",
    )
    version = import_module("forebay").__version__
    parser.add_argument("--version", action="version", version=f"forebay {version}")
    commands = parser.add_subparsers(
        title="commands", dest="command", required=True, metavar="COMMAND"
    )
    for name, module in (("demo", demo), ("bench", bench), ("parity", parity)):
        command = commands.add_parser(name, help=module.HELP, description=module.DESCRIPTION)
        module.add_arguments(command)
        command.set_defaults(run=module.run)
        parser.commands[name] = command
    return parser


class Parser(argparse.ArgumentParser):
    """argparse that takes no abbreviations and, for an unknown option, names the nearest."""

    def __init__(self, *args: object, **options: object) -> None:
        super().__init__(*args, allow_abbrev=False, **options)  # type: ignore[arg-type,misc]  # as argparse's own
        self.commands: dict[str, Parser] = {}

    def parse_args(  # type: ignore[override]  # argparse overloads it for other namespaces
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> argparse.Namespace:
        """As ever, but an unknown option ends with a suggestion."""
        found, unknown = self.parse_known_args(args, namespace)
        if unknown:
            asked = self.commands.get(getattr(found, "command", ""), self)
            # What follows an unknown option is most likely its value.
            options = [word for word in unknown if word.startswith("-")]
            asked.error("; ".join(asked.suggestion(word) for word in options or unknown))
        return found

    def suggestion(self, word: str) -> str:
        """What to say about an argument that nothing takes."""
        if not word.startswith("-"):
            return f"unexpected argument {word!r}"
        close = difflib.get_close_matches(word.partition("=")[0], self._option_string_actions, n=1)
        hint = f"; did you mean {close[0]}?" if close else ""
        return f"unknown option {word}{hint}"

    def error(self, message: str) -> NoReturn:
        """One line and where to find more, instead of the whole usage."""
        print(f"{self.prog}: {message}\nSee: {self.prog} --help", file=sys.stderr)
        sys.exit(USAGE)


def _complain(error: ForebayError | OSError, status: int) -> int:
    for line in (f"forebay: {error}", *getattr(error, "__notes__", ())):
        print(line, file=sys.stderr)
    return status


def _discard_output() -> None:
    """Lets whatever is buffered for nobody go nowhere, or Python complains of it at its exit."""
    for stream in filter(None, (sys.stdout, sys.stderr)):
        try:
            stream.flush()
        except OSError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())
            os.close(nowhere)


if __name__ == "__main__":
    sys.exit(main())
