"""May this waiting request start now? A pure function of the present state."""

from dataclasses import dataclass

from forebay.core.draft import StepDraft
from forebay.core.kv import KvSpace, Probe
from forebay.core.lifecycle import Queued, QueuedWhy, Swapped
from forebay.core.limits import Limits
from forebay.core.queues import Queues
from forebay.core.request import Request
from forebay.core.swap import HostRun


@dataclass(slots=True, frozen=True)
class Start:
    """Admit it; `probe` says what it hits."""

    probe: Probe


@dataclass(slots=True, frozen=True)
class BringBack:
    """Swap it in."""

    host: HostRun


@dataclass(slots=True, frozen=True)
class Stop:
    """It waits, and nobody behind it passes. Shortages are 0 where something else is short."""

    blocks_short: int = 0
    seats_short: int = 0


Verdict = Start | BringBack | Stop


class Admission:
    """Seats, budget and blocks for all known tokens, with head-room while something runs."""

    def __init__(self, limits: Limits, kv: KvSpace, queues: Queues) -> None:
        self._limits = limits
        self._kv = kv
        self._queues = queues

    def headroom(self) -> int:
        """Blocks to leave free when admitting: none on an idle engine, so the head can start."""
        return self._limits.watermark_blocks if self._queues.running else 0

    def decide(self, request: Request, draft: StepDraft, headroom: int) -> Verdict:
        """The verdict on the first waiting request."""
        if draft.budget == 0 or self._must_settle(request):
            return Stop()
        if not self._limits.chunked_prefill and not self._fits_whole(request, draft):
            return Stop()
        probe = None
        if isinstance(request.state, Swapped):
            cost = self._kv.swap_in_cost(request, request.state.host)
        else:
            probe = self._kv.probe(request)
            cost = probe.cost
        taken = sum(req.num_seats for req in self._queues.running)
        seats_short = max(0, taken + request.num_seats - self._limits.max_num_seqs)
        blocks_short = max(0, cost - self._kv.pool.num_free)
        if seats_short or blocks_short:
            return Stop(blocks_short, seats_short)
        if cost + headroom > self._kv.pool.num_free:
            return Stop()
        if isinstance(request.state, Swapped):
            return BringBack(request.state.host)
        assert probe is not None
        return Start(probe)

    @staticmethod
    def _must_settle(request: Request) -> bool:
        """A request to be recomputed waits for its tokens in flight: one may end it."""
        return isinstance(request.state, Queued) and any(seq.pending for seq in request.live)

    def _fits_whole(self, request: Request, draft: StepDraft) -> bool:
        """Without chunking a new prompt takes one step; a resumed request may take several."""
        if request.state != Queued(QueuedWhy.NEW):
            return True
        return request.spec.num_prompt <= draft.budget
