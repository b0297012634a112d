"""`forebay parity`: replays recorded decisions of reference schedulers and tells what differs."""

import argparse
from pathlib import Path

from forebay.errors import ConfigError

HELP = "replay recorded scheduler decisions"
DESCRIPTION = (
    "Replays scenario files, recorded from reference schedulers, through forebay's core. For each "
    "that differs, prints the first differing step and field with both values. The exit status "
    "is 1 if any file differs or cannot be read."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What to replay."""
    parser.add_argument(
        "paths",
        nargs="+",
        type=Path,
        metavar="PATH",
        help="a scenario file (.json or .json.gz), or a folder of them",
    )


def run(arguments: argparse.Namespace) -> int:
    """Replays all files; the last line counts them."""
    from forebay.parity.kinds import KINDS
    from forebay.parity.replay import replay_file, scenario_files

    files = scenario_files(arguments.paths)
    if not files:
        named = ", ".join(str(path) for path in arguments.paths)
        raise ConfigError(f"no scenario file (.json or .json.gz) in {named}")
    num_failed = 0
    for file in files:
        outcome = replay_file(file, KINDS)
        if outcome.fault is not None:
            num_failed += 1
            print(f"{file}: {outcome.fault}", flush=True)
    print(f"{len(files) - num_failed} passed, {num_failed} failed")
    return 1 if num_failed else 0
