"""May this waiting request start now? A pure function of the present state."""

from dataclasses import dataclass

from forebay.core.draft import StepDraft
from forebay.core.kv import KvSpace, Probe
from forebay.core.lifecycle import Queued, QueuedWhy, Swapped
from forebay.core.limits import Limits
from forebay.core.outlook import Prospects
from forebay.core.policies import Urgency
from forebay.core.queues import Queues
from forebay.core.request import Request
from forebay.core.swap import HostRun


@dataclass(slots=True, frozen=True)
class Start:
    """Admit it; `probe` says what it hits."""

    probe: Probe
    cost: int
    """Free blocks it takes."""


@dataclass(slots=True, frozen=True)
class BringBack:
    """Swap it in."""

    host: HostRun
    cost: int


@dataclass(slots=True, frozen=True)
class Stop:
    """It waits, and nobody behind it passes. Shortages are 0 where something else is short."""

    blocks_short: int = 0
    seats_short: int = 0


Verdict = Start | BringBack | Stop


class Admission:
    """Seats, budget and blocks for all known tokens, and an outlook while something runs."""

    def __init__(self, limits: Limits, kv: KvSpace, queues: Queues, outlook: Prospects) -> None:
        self._limits = limits
        self._kv = kv
        self._queues = queues
        self._outlook = outlook

    def decide(self, request: Request, draft: StepDraft) -> Verdict:
        """The verdict on the first waiting request: room now, and an outlook worth starting for.

        On an idle engine only room counts, so that the head can always start; so it does where a
        less urgent one runs, which will be the first to yield.
        """
        verdict = self.has_room(request, draft)
        if isinstance(verdict, Stop) or self._has_least_to_lose(request):
            return verdict
        if verdict.cost + self._limits.watermark_blocks > self._kv.pool.num_free:
            return Stop()
        return verdict if self._outlook.pays(request, verdict.cost) else Stop()

    def _has_least_to_lose(self, request: Request) -> bool:
        running = self._queues.running
        if self._limits.rules.urgency is Urgency.WAITS:
            return not (running or self._queues.parked)
        return not running or running[-1].order[0] > request.order[0]

    def has_room(self, request: Request, draft: StepDraft) -> Verdict:
        """Whether seats, budget and blocks suffice at this moment."""
        if self._must_settle(request):
            return Stop()
        if not self._limits.chunked_prefill and not self._fits_whole(request, draft):
            return Stop()
        probe = None
        if isinstance(request.state, Swapped):
            cost = self._kv.swap_in_cost(request, request.state.host)
        else:
            probe = self._kv.probe(request)
            cost = probe.cost
        taken = sum(req.num_seats for req in [*self._queues.running, *self._queues.parked])
        seats_short = max(0, taken + request.num_seats - self._limits.max_num_seqs)
        blocks_short = max(0, cost - self._kv.pool.num_free)
        if seats_short or blocks_short:
            return Stop(blocks_short, seats_short)  # whoever yields gives tokens back as well
        if draft.budget == 0:
            return Stop()
        if isinstance(request.state, Swapped):
            return BringBack(request.state.host, cost)
        assert probe is not None
        return Start(probe, cost)

    @staticmethod
    def _must_settle(request: Request) -> bool:
        """A request to be recomputed waits for its tokens in flight: one may end it."""
        return isinstance(request.state, Queued) and any(seq.pending for seq in request.live)

    def _fits_whole(self, request: Request, draft: StepDraft) -> bool:
        """Without chunking a new prompt takes one step; a resumed request may take several."""
        if request.state != Queued(QueuedWhy.NEW):
            return True
        return request.spec.num_prompt <= draft.budget
