"""Who else is there, when they come and when they go changes no output."""

import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from forebay import LLM, SamplingParams
from forebay.llm import RequestOutput
from tests.exactness.mixed import PLENTY, Mixed, Opener
from tests.exactness.test_matrix import MODES
from tests.exactness.workload import Request, alone, differences

_WATCHED = Request(
    "watched",
    [3, 1, 4, 1, 5, 9, 2, 6, 5],
    SamplingParams(temperature=0.9, top_p=0.95, seed=77, max_tokens=60, ignore_eos=True),
)


def test_a_seeded_request_does_not_depend_on_company_or_preemption(open_tiny: Opener) -> None:
    with open_tiny(num_gpu_blocks_override=PLENTY) as llm:
        expected = alone(llm, [_WATCHED])
    counts = set()
    for seed, mode in enumerate(MODES * 3):
        settings = {
            "num_gpu_blocks_override": PLENTY if seed < 3 else 40,
            "preemption_mode": mode,
            "artificial_preemption": seed > 0,
            "artificial_preemption_seed": seed,
        }
        with open_tiny(**settings) as llm:
            found = _in_company(llm, random.Random(seed), num_others=3 * (seed % 4))
            assert not differences([_WATCHED], [found], expected)
            counts.add(found.metrics.num_preemptions)
    assert min(counts) == 0
    assert len(counts) > 3
    assert max(counts) > 4


def _in_company(llm: LLM, draw: random.Random, num_others: int) -> RequestOutput:
    """The watched request somewhere among others that also sample."""
    others = [
        ([draw.randrange(256) for _ in range(draw.randrange(1, 40))], SamplingParams(max_tokens=50))
        for _ in range(num_others)
    ]
    at = draw.randrange(num_others + 1)
    batch = [*others[:at], (_WATCHED.prompt, _WATCHED.params), *others[at:]]
    return llm.generate([one for one, _ in batch], [params for _, params in batch])[at]


@pytest.mark.parametrize("steps", [1, 2, 3])
@pytest.mark.parametrize("mode", MODES)
def test_late_arrivals_and_early_departures_change_no_output(
    mode: str, steps: int, mixed: Mixed, open_tiny: Opener
) -> None:
    """Four callers at once, while a fifth sends requests whose deadline passes on the way."""
    settings = {
        "num_gpu_blocks_override": mixed.share(3),
        "preemption_mode": mode,
        "steps_in_flight": steps,
    }
    places = range(len(mixed.requests))
    with open_tiny(**settings) as llm, ThreadPoolExecutor(5) as pool:
        done = threading.Event()
        guests = pool.submit(_passing_guests, llm, mixed, done.is_set)
        callers = [pool.submit(mixed.compare, llm, places[at::4]) for at in range(4)]
        try:
            for caller in callers:
                caller.result()
        finally:
            done.set()
        wrong, num_cut_short = guests.result()
        assert not wrong
        assert num_cut_short > 0
        tally = llm.stats().tally
        assert tally.preemptions_recompute + tally.preemptions_swap > 0


def _passing_guests(llm: LLM, mixed: Mixed, is_done: Callable[[], bool]) -> tuple[list[str], int]:
    """Where a guest's tokens are not the first of those it would have had; how many were cut."""
    guests = [(one, out) for one, out in zip(mixed.requests, mixed.expected, strict=True)][:8]
    wrong, num_cut_short = [], 0
    while not (is_done() and num_cut_short):
        for request, expected in guests:
            [output] = llm.generate(request.prompt, request.params, deadline_ms=8)
            for one, whole in zip(output.outputs, expected.outputs, strict=True):
                num_cut_short += one.finish_reason == "deadline"
                if one.token_ids != whole.token_ids[: len(one.token_ids)]:
                    wrong.append(f"{request.name}: {one.token_ids} begin not {whole.token_ids}")
        time.sleep(0)
    return wrong, num_cut_short
