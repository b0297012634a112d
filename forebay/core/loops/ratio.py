"""SGLang's way under pressure: before a step, retract until all decoders find their blocks.

Who has generated least goes first, among equals the longest prompt: it loses least. At least one
request stays; intake has capped it to the pool, so it never has to be aborted. If ending requests
will give memory back, decoders wait a step for it instead.
"""

from forebay.core.draft import StepDraft
from forebay.core.effects import Cause
from forebay.core.loops.default import DefaultLoop
from forebay.core.request import Request, Sequence
from forebay.core.rooms import Rooms
from forebay.core.token_ratio import TokenRatio, generated


class RatioLoop(DefaultLoop):
    """The default loop behind a retraction, which teaches admission its share."""

    def __init__(self, rooms: Rooms) -> None:
        super().__init__(rooms)
        assert isinstance(rooms.outlook, TokenRatio)
        self._share = rooms.outlook
        self._coming = 0
        """Blocks that return by themselves."""

    def plan(self, draft: StepDraft) -> None:
        """Retracts if need be, then plans as ever."""
        queues = self._rooms.queues
        if not (queues.running or queues.waiting or queues.parked):
            self._share.note_idle()
            return
        if self._retract(draft):
            self._share.note_retracted(queues.running)
        elif any(req.is_decoding for req in queues.running):
            self._share.note_decoded()
        super().plan(draft)

    def _retract(self, draft: StepDraft) -> bool:
        """Whether anybody had to yield."""
        running = self._rooms.queues.running
        ending = [req for req in running if all(seq.total >= seq.limit for seq in req.live)]
        kv = self._rooms.kv
        self._coming = kv.fences.num_returning + kv.num_freed_by(ending)
        while len(running) > 1 and self._shortage() > self._coming:
            # the latest among equals, hence reversed
            victim = min((req for req in reversed(running) if req not in ending), key=_loss)
            self._preempt([victim], Cause.BLOCKS, draft)
        return bool(draft.preempted)

    def _shortage(self) -> int:
        """Blocks that one more token for every decoder needs beyond the free ones."""
        kv = self._rooms.kv
        missing = sum(
            kv.missing(req, seq, seq.to_compute)
            for req in self._rooms.queues.running
            if req.is_decoding
            for seq in req.live
            if seq.to_compute
        )
        return missing - kv.pool.num_free

    def _make_room(self, req: Request, seq: Sequence, num_tokens: int, draft: StepDraft) -> bool:
        """As ever, but what is coming by itself is waited for."""
        kv = self._rooms.kv
        if self._coming and kv.missing(req, seq, num_tokens) > kv.pool.num_free:
            self._rooms.actions.tally.stalled_rows += 1
            draft.under_pressure = True
            return False
        return super()._make_room(req, seq, num_tokens, draft)


def _loss(request: Request) -> tuple[int, int]:
    return generated(request), -request.spec.num_prompt
