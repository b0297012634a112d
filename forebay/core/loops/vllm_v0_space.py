"""vLLM V0's questions to its block manager, and its delay of prompts.

Source: vLLM 0.5.5, `BlockSpaceManagerV1` and `Scheduler._passed_delay`.
"""

from collections.abc import Sequence as Seq
from enum import Enum

from forebay.core.kv import KvSpace
from forebay.core.limits import Limits
from forebay.core.policies import GrowthCheck, PromptDelay
from forebay.core.request import Request
from forebay.core.swap import HostRun
from forebay.units import Nanos


class Alloc(Enum):
    """An answer about room."""

    OK = "ok"
    LATER = "later"
    """Not now."""
    NEVER = "never"
    """Not even if the pool were empty."""


class Space:
    """Is there room? Sees counts only."""

    def __init__(self, limits: Limits, kv: KvSpace) -> None:
        self._limits = limits
        self._kv = kv

    def can_allocate(self, cost: int) -> Alloc:
        """Whether a waiting group's `cost` blocks, all its known tokens, leave the watermark."""
        if self._limits.num_blocks - cost < self._limits.watermark_blocks:
            return Alloc.NEVER
        return self._now(cost)

    def can_append(self, request: Request) -> bool:
        """Whether a running group may go on, judged as the rules say.

        A group that is computed again, which the reference cannot do, is judged by what it takes:
        evicting itself half-way it would never get any further.
        """
        replays = request.forked and request.is_prefilling
        if self._limits.rules.growth is GrowthCheck.ONE_EACH and not replays:
            return len(request.live) <= self._kv.pool.num_free
        missing = sum(self._kv.missing(request, seq, seq.to_compute) for seq in request.live)
        return missing <= self._kv.pool.num_free

    def can_swap_in(self, request: Request, host: HostRun) -> Alloc:
        """Whether a swapped group's distinct blocks fit, and one more for each sequence.

        The reference leaves the watermark out of what can never be.
        """
        needed = len(host.slots) + len(request.live)
        if self._limits.num_blocks < needed:
            return Alloc.NEVER
        return self._now(needed)

    def _now(self, needed: int) -> Alloc:
        fits = self._kv.pool.num_free - needed >= self._limits.watermark_blocks
        return Alloc.OK if fits else Alloc.LATER


class DelayGate:
    """Whether waiting prompts have gathered for long enough.

    The measure is the time from the check of the last step that admitted prompts to the next
    check. In floating-point seconds: rounding decides ties.
    """

    def __init__(self, delay: PromptDelay | None) -> None:
        self._delay = delay
        self._last_check_s = 0.0
        self._last_prompts_s = 0.0
        self._admitted = False

    def note_admitted(self) -> None:
        """The present step admits prompts."""
        self._admitted = True

    def is_open(self, now: Nanos, waiting: Seq[Request], running: Seq[Request]) -> bool:
        """Asked before every attempt to admit a prompt, also when none waits."""
        if self._delay is None:
            return True
        now_s = now * self._delay.unit_s
        if self._admitted:
            self._last_prompts_s = now_s - self._last_check_s
        self._last_check_s, self._admitted = now_s, False
        if not waiting or not running:
            return True
        earliest_s = min(req.spec.arrival_ns * self._delay.unit_s for req in waiting)
        return now_s - earliest_s > self._delay.factor * self._last_prompts_s
