"""May this request start, or its load begin? vLLM 0.25.1's block checks, from the present state."""

from dataclasses import dataclass

from forebay.core.draft import StepDraft
from forebay.core.kv import Probe
from forebay.core.lifecycle import Loaded
from forebay.core.request import Request
from forebay.core.rooms import Rooms


@dataclass(slots=True, frozen=True)
class Start:
    """Admit it; `probe` says what it hits."""

    probe: Probe


@dataclass(slots=True, frozen=True)
class StartLoaded:
    """Admit a request whose load is complete."""

    loaded: Loaded


@dataclass(slots=True, frozen=True)
class BeginLoad:
    """Load what an external store has beyond the hits."""

    probe: Probe


@dataclass(slots=True, frozen=True)
class Stop:
    """It does not fit: nobody behind it starts either."""


Verdict = Start | StartLoaded | BeginLoad | Stop


class VllmV1Admission:
    """The watermark counts while something runs; only loads respect reservations."""

    def __init__(self, rooms: Rooms) -> None:
        self._rooms = rooms

    def decide(self, request: Request, draft: StepDraft, defers: bool) -> Verdict:
        """The verdict on the first request of its queue. Budget and seats are left."""
        (seq,) = request.live
        if seq.pending:
            return Stop()  # a token in flight may end it; with up to two steps never met
        if isinstance(request.state, Loaded):
            spare = self._spare() + len(seq.table.blocks)
            fits = self._chunk_fits(request, seq.computed, spare, draft, defers)
            return StartLoaded(request.state) if fits else Stop()
        probe = self._rooms.kv.probe(request)
        hits = len(probe.hits[0])
        revived = probe.cost - (self._rooms.limits.blocks_for(seq.known) - hits)
        spare = self._spare() + hits - revived
        if self._rooms.loads.offered(request, probe):
            return BeginLoad(probe) if self._load_fits(request, spare) else Stop()
        start = hits * self._rooms.limits.block_size
        return Start(probe) if self._chunk_fits(request, start, spare, draft, defers) else Stop()

    def _load_fits(self, request: Request, spare: int) -> bool:
        unreserved = spare - reserved_blocks(self._rooms)
        loaded = request.spec.external_tokens
        return self._whole_fits(request, spare) and self._fits(loaded, unreserved)

    def _chunk_fits(
        self, request: Request, start: int, spare: int, draft: StepDraft, defers: bool
    ) -> bool:
        num_tokens = request.live[0].known - start
        if defers and num_tokens > 1:
            return False  # one token is no prefill: all but the last known one are hits or loaded
        limits = self._rooms.limits
        num_tokens = min(num_tokens, limits.long_prefill_token_threshold or num_tokens)
        if num_tokens > draft.budget and not limits.chunked_prefill:
            return False
        num_tokens = min(num_tokens, draft.budget)
        return self._whole_fits(request, spare) and self._fits(start + num_tokens, spare)

    def _whole_fits(self, request: Request, spare: int) -> bool:
        if not self._rooms.limits.reserve_full_prompt:
            return True
        return self._fits(request.live[0].known, spare)

    def _fits(self, num_tokens: int, spare: int) -> bool:
        return self._rooms.limits.blocks_for(num_tokens) <= spare

    def _spare(self) -> int:
        """Blocks that whoever starts may have."""
        limits, free = self._rooms.limits, self._rooms.kv.pool.num_free
        return free - (limits.watermark_blocks if self._rooms.queues.running else 0)


def reserved_blocks(rooms: Rooms) -> int:
    """Blocks that running prefills and parked requests still need for their known tokens."""
    chunks = [req for req in rooms.queues.running if rooms.throttle.in_prefill(req)]
    owed = 0
    for req in chunks + rooms.queues.parked:
        (seq,) = req.live
        owed += max(0, rooms.limits.blocks_for(seq.known) - len(seq.table.blocks))
    return owed
