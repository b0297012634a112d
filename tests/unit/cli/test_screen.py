import dataclasses
import io

import pytest
from rich.console import Console

from forebay.cli import screen
from forebay.cli.demo import DemoRun
from forebay.core.gauges import Gauges, Tally
from forebay.engine.live import EngineStats


def rendered(gauges: Gauges, tally: Tally) -> str:
    out = io.StringIO()
    console = Console(file=out, width=100, color_system=None)
    console.print(screen._panel("swap", EngineStats(gauges, tally), 48, 0.0))
    return out.getvalue()


@pytest.mark.parametrize(("active", "cached"), [(0, 0), (10, 0), (50, 25), (100, 0), (99, 1)])
def test_the_bar_shows_the_pool(active: int, cached: int) -> None:
    gauges = Gauges(
        num_running=7,
        num_waiting=5,
        num_swapped=3,
        blocks_total=100,
        blocks_active=active,
        blocks_fenced=0,
        blocks_cached=cached,
        blocks_free=100 - active - cached,
        host_total=50,
        host_used=9,
        num_in_flight=1,
    )
    text = rendered(gauges, Tally(requests_ended=33, preemptions_recompute=2, preemptions_swap=4))
    cells = text.count("█"), text.count("▒"), text.count("░")
    assert sum(cells) == 48
    assert cells[0] == round(48 * active / 100)
    assert abs(cells[1] - 48 * cached / 100) <= 1
    assert f"{active} in use, {cached} cached, 100 in all" in text
    assert "33 of 48 done, 7 running, 5 waiting, 3 swapped, 6 preemptions" in text


def test_a_narrow_terminal_cuts_no_figure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    run = DemoRun(
        name="no pressure",
        kv_tokens_limit=12_345,
        kv_tokens_peak=12_345,
        seconds=112.3,
        output_tok_s=345.0,
        preemptions_recompute=3,
        preemptions_swap=219,
        recomputed_tokens=44_444,
        swapped_bytes=5 << 20,
        num_identical=48,
    )
    other = dataclasses.replace(run, name="swap")
    screen.Screen(is_quiet=False).table([run, other], 48)
    figures = "swap 12,345 112.3 s 345 222 44,444 5 MiB identical"
    assert figures in " ".join(capsys.readouterr().out.split())


def test_what_a_terminal_would_obey_is_not_shown() -> None:
    assert screen._shortened("a\x1b[31mb\nc\x07") == "a [31mb c"
    assert len(screen._shortened("x" * 9000)) < 500
