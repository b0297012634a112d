"""The mixed workload beside what each of its requests gives alone in a large pool."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forebay import LLM
from forebay.core.gauges import Tally
from forebay.llm import RequestOutput
from tests.exactness.workload import Request, alone, differences, mixed_workload, together

BLOCK_SIZE = 4
PLENTY = 512  # blocks: more than all requests together ever hold

Opener = Callable[..., AbstractContextManager[LLM]]


@dataclass(frozen=True, slots=True)
class Mixed:
    """The workload, its outputs without company and pressure, and what it takes."""

    requests: list[Request]
    expected: list[RequestOutput]
    peak_blocks: int
    """Blocks that are held at most when all run at once without pressure."""

    @property
    def longest(self) -> int:
        """The shortest `max_model_len` with which nothing is cut off."""
        return max(request.longest for request in self.requests)

    def largest(self, block_size: int = BLOCK_SIZE) -> int:
        """Blocks of the request that needs most."""
        return max(request.num_blocks(block_size) for request in self.requests)

    def share(self, divisor: int) -> int:
        """A pool of this part of what all need, in blocks."""
        return max(self.peak_blocks // divisor, self.largest())

    def check(
        self, llm: LLM, *, order: Sequence[int] | None = None, priority: Sequence[int] | None = None
    ) -> Tally:
        """Runs all at once; fails on any output that differs; returns the engine's counters.

        The engine has no other work: afterwards nothing is held.
        """
        self.compare(llm, range(len(self.requests)) if order is None else order, priority)
        gauges, tally = llm.stats().gauges, llm.stats().tally
        assert gauges.blocks_active == gauges.blocks_fenced == gauges.host_used == 0
        assert tally.peak_active_blocks <= gauges.blocks_total
        return tally

    def compare(
        self, llm: LLM, places: Sequence[int], priority: Sequence[int] | None = None
    ) -> None:
        """Runs some of the requests, which may have any company; fails if an output differs."""
        requests = [self.requests[at] for at in places]
        found = together(llm, requests, priority)
        wrong = differences(requests, found, [self.expected[at] for at in places])
        assert not wrong, "\n".join(wrong)

    def check_backwards(self, llm: LLM) -> Tally:
        """The same in the opposite order, over whatever the prefix cache still has."""
        return self.check(llm, order=range(len(self.requests) - 1, -1, -1))


def opener(model: Path) -> Opener:
    """Opens `model` with any settings, all that fits at once unless they say otherwise.

    One thread, because on so small a model a second one gains nothing.
    """

    @contextmanager
    def opened(**settings: Any) -> Iterator[LLM]:
        usual: dict[str, Any] = {
            "num_threads": 1,
            "max_model_len": -1,
            "max_num_seqs": 32,
            "max_num_batched_tokens": 64,
            "block_size": BLOCK_SIZE,
            "expected_output_share": 0,
        }
        if settings.get("preemption_mode") != "recompute":
            usual["swap_space"] = 0.01
        with LLM(str(model), **{**usual, **settings}) as llm:
            yield llm

    return opened


def run_alone(open_tiny: Opener, **settings: Any) -> Mixed:
    """Composes the workload and runs it one by one: no company, no cache, no preemption."""
    plain = {"preemption_mode": "recompute", "num_gpu_blocks_override": PLENTY, **settings}
    with open_tiny(**plain, enable_prefix_caching=False) as llm:
        requests = mixed_workload(llm)
    with open_tiny(**plain, enable_prefix_caching=False) as llm:
        expected = alone(llm, requests)
        assert llm.stats().tally.preemptions_recompute == 0
    with open_tiny(**plain, enable_prefix_caching=False) as llm:
        together(llm, requests)
        peak = llm.stats().tally.peak_active_blocks
    assert peak < PLENTY
    return Mixed(requests, expected, peak)
