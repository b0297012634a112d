"""What the demo shows: live progress on a terminal, plain lines elsewhere, then tables."""

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from forebay.cli.demo import DemoRun
    from forebay.engine.live import EngineStats
    from forebay.llm import LLM, CompletionOutput

_BAR_CELLS = 48
_LINE_EVERY_S = 5.0
_REFRESH_PER_S = 5
_ANSWER_CHARS = 400
_TABLE_CELLS = 80


class Screen:
    """Progress goes to stderr, results to stdout; with `is_quiet` there is progress only."""

    def __init__(self, *, is_quiet: bool) -> None:
        self._results = Console(quiet=is_quiet, highlight=False)
        self._progress = Console(stderr=True, highlight=False)

    def introduce(self, num_prompts: int, need_tokens: int, pool_tokens: int) -> None:
        """What is about to happen."""
        self._results.print(
            f"{num_prompts} prompts need {need_tokens:,} tokens of KV cache to run together; "
            f"the runs under pressure get {pool_tokens:,}.",
            soft_wrap=True,
        )

    @contextmanager
    def loading(self, name: str) -> Iterator[None]:
        """Shows that the model is being loaded for one run."""
        if self._progress.is_terminal:
            with self._progress.status(f"{name}: loading the model"):
                yield
            return
        self._say(f"{name}: loading the model")
        yield

    def started(self, llm: "LLM") -> None:
        """How memory divides, once the first model is loaded."""
        self._say(str(llm.startup))

    @contextmanager
    def watch(self, name: str, llm: "LLM", num_prompts: int) -> Iterator[None]:
        """Shows how the run goes while the block runs."""
        start = time.monotonic()
        if self._progress.is_terminal:
            with Live(
                console=self._progress,
                refresh_per_second=_REFRESH_PER_S,
                transient=True,
                get_renderable=lambda: _panel(name, llm.stats(), num_prompts, start),
            ):
                yield
            return
        done = threading.Event()
        reporter = threading.Thread(
            target=self._report, args=(name, llm, num_prompts, start, done), daemon=True
        )
        reporter.start()
        try:
            yield
        finally:
            done.set()
            reporter.join()

    def finished(self, run: "DemoRun", num_prompts: int) -> None:
        """One line about a run that is over."""
        self._say(
            f"{run.name}: {run.seconds:.1f} s, {run.output_tok_s:.0f} tokens/s, "
            f"{run.preemptions_recompute + run.preemptions_swap} preemptions, "
            f"{run.num_identical} of {num_prompts} outputs identical"
        )

    def answers(self, pairs: "Sequence[tuple[str, CompletionOutput]]") -> None:
        """Some questions with their answers."""
        for question, answer in pairs:
            is_cut = answer.finish_reason == "length"
            self._results.print()
            self._results.print(Text(f"> {_shortened(question)}", style="bold"))
            self._results.print(Text(_shortened(answer.text) + " ..." * is_cut))

    def table(self, runs: Sequence["DemoRun"], num_prompts: int) -> None:
        """The four runs side by side."""
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
        table.add_column("preemption", no_wrap=True)
        for heading in ("KV pool", "time", "tok/s", "preempted", "recomputed", "swapped"):
            table.add_column(heading, justify="right", no_wrap=True)
        table.add_column("outputs", no_wrap=True)
        for run in runs:
            table.add_row(
                run.name,
                f"{run.kv_tokens_limit:,}",
                f"{run.seconds:.1f} s",
                f"{run.output_tok_s:.0f}",
                str(run.preemptions_recompute + run.preemptions_swap),
                f"{run.recomputed_tokens:,}",
                f"{run.swapped_bytes / 2**20:,.0f} MiB",
                _verdict(run, num_prompts, is_reference=run is runs[0]),
            )
        self._results.print()
        # A narrow terminal breaks the lines, but no figure is cut off.
        self._results.width = max(self._results.width, _TABLE_CELLS)
        self._results.print(table)
        self._results.print(
            "KV pool and recomputed: tokens. preempted: times that a request yielded."
        )

    def _report(
        self, name: str, llm: "LLM", num_prompts: int, start: float, done: threading.Event
    ) -> None:
        while not done.wait(_LINE_EVERY_S):
            self._say(f"{name}: {_line(llm.stats(), num_prompts, start)}")

    def _say(self, line: str) -> None:
        self._progress.print(line, soft_wrap=True)


def _verdict(run: "DemoRun", num_prompts: int, *, is_reference: bool) -> Text:
    if is_reference:
        return Text("reference")
    if run.num_identical == num_prompts:
        return Text("identical", style="green")
    return Text(f"{num_prompts - run.num_identical} DIFFER", style="bold red")


def _panel(name: str, stats: "EngineStats", num_prompts: int, start: float) -> Panel:
    gauges = stats.gauges
    active = round(_BAR_CELLS * gauges.blocks_active / gauges.blocks_total)
    cached = round(_BAR_CELLS * gauges.blocks_cached / gauges.blocks_total)
    cached = min(cached, _BAR_CELLS - active)
    bar = Text.assemble(
        ("█" * active, "green" if active < _BAR_CELLS else "red"),
        ("▒" * cached, "blue"),
        ("░" * (_BAR_CELLS - active - cached), "dim"),
    )
    blocks = Text(
        f"blocks {gauges.blocks_active} in use, {gauges.blocks_cached} cached, "
        f"{gauges.blocks_total} in all"
    )
    return Panel(
        Group(bar, blocks, Text(_line(stats, num_prompts, start))),
        title=name,
        title_align="left",
        width=min(100, _BAR_CELLS + 44),
    )


def _line(stats: "EngineStats", num_prompts: int, start: float) -> str:
    gauges, tally = stats.gauges, stats.tally
    preempted = tally.preemptions_recompute + tally.preemptions_swap
    return (
        f"{time.monotonic() - start:4.0f} s  {tally.requests_ended} of {num_prompts} done, "
        f"{gauges.num_running} running, {gauges.num_waiting} waiting, "
        f"{gauges.num_swapped} swapped, {preempted} preemptions"
    )


def _shortened(text: str) -> str:
    # A model may print anything, also what a terminal would obey.
    flat = " ".join("".join(one if one.isprintable() else " " for one in text).split())
    return flat if len(flat) <= _ANSWER_CHARS else flat[:_ANSWER_CHARS] + " ..."
