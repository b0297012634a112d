"""Commands in turns, A B C A B C ..., medians and ratios: a comparison that survives drift.

    python bench/side_by_side.py --rounds 3 --out result.json \\
        'free=forebay bench --requests 32 --prompt 128 --output 128 --json' \\
        'swap=forebay bench --requests 32 --prompt 128 --output 128 --kv-tokens 4096 \\
              --preemption swap --json'

Each command prints a JSON object as its last line of stdout, with `output_tok_s`. Any engine that
can be wrapped so may take part. Ratios are to the first command, round by round, then the median.
Run it on a quiet machine: the load average before each round is printed, and belongs to the result.
"""

import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys
from pathlib import Path


def measure(command: str) -> dict[str, object]:
    """Runs one command; its last line of output as an object."""
    done = subprocess.run(shlex.split(command), capture_output=True, text=True, check=False)
    lines = done.stdout.strip().splitlines()
    if done.returncode != 0 or not lines:
        raise SystemExit(f"{command} failed ({done.returncode}):\n{done.stderr[-2000:]}")
    result = json.loads(lines[-1])
    assert isinstance(result, dict)
    return result


def main() -> None:
    """Parses, runs all rounds, prints a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("commands", nargs="+", metavar="NAME=COMMAND")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, help="write every single result here, as JSON")
    arguments = parser.parse_args()
    commands = dict(item.split("=", 1) for item in arguments.commands)
    runs: dict[str, list[dict[str, object]]] = {name: [] for name in commands}
    for at in range(arguments.rounds):
        print(f"round {at + 1}: load average {os.getloadavg()[0]:.2f}", file=sys.stderr)
        for name, command in commands.items():
            runs[name].append(measure(command))
            print(f"  {name}: {runs[name][-1]['output_tok_s']:.1f} tok/s", file=sys.stderr)
    rates = {name: [float(str(run["output_tok_s"])) for run in runs[name]] for name in runs}
    first = next(iter(rates.values()))
    print("| run | tok/s, median (min-max) | to the first |\n|---|---|---|")
    for name, values in rates.items():
        ratio = statistics.median(a / b for a, b in zip(values, first, strict=True))
        middle = statistics.median(values)
        print(f"| {name} | {middle:.1f} ({min(values):.1f}-{max(values):.1f}) | {ratio:.2f} |")
    digests = {str(run["outputs_sha256"]) for many in runs.values() for run in many
               if "outputs_sha256" in run}  # fmt: skip
    if digests:
        print(f"\noutputs identical: {'yes' if len(digests) == 1 else 'NO'}")
    if arguments.out:
        arguments.out.write_text(json.dumps(runs, indent=1))


if __name__ == "__main__":
    main()
