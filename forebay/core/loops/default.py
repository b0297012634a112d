"""Forebay's own loop: decoders first, then prefill chunks, then whoever may start.

Four rules set it apart from its peers. Decoding is never held back by a prefill. Blocks that are
returning by themselves are counted before anybody else is evicted. A request for which nobody
behind it can yield *waits* with its blocks instead of evicting itself. A waiting request evicts a
strictly less urgent running one, for blocks as well as for a place in the batch.
"""

from forebay.core import sizing
from forebay.core.admission import BringBack, Start, Stop, Verdict
from forebay.core.draft import StepDraft
from forebay.core.effects import Cause, JoinKind
from forebay.core.lifecycle import Loaded, Running, Swapped
from forebay.core.policies import Urgency
from forebay.core.request import Request, Sequence
from forebay.core.rooms import Rooms


class DefaultLoop:
    """Plans one step into a draft."""

    def __init__(self, rooms: Rooms) -> None:
        self._rooms = rooms

    def plan(self, draft: StepDraft) -> None:
        """Fills the draft: who runs, who yields, who starts."""
        rooms = self._rooms
        running = list(rooms.queues.running)  # victims leave the queue meanwhile
        self._continue_all([req for req in running if req.is_decoding], draft)
        defers = rooms.throttle.defers(draft, protects=bool(draft.planned))
        if not defers:
            self._continue_all([req for req in running if not req.is_decoding], draft)
        self._admit_waiting(draft, defers)
        rooms.throttle.note_step(draft, len(rooms.queues.waiting), deferred=defers)

    def _continue_all(self, requests: list[Request], draft: StepDraft) -> None:
        for req in requests:
            for seq in req.live:
                if isinstance(req.state, Running):
                    self._continue(req, seq, draft)

    def _continue(self, req: Request, seq: Sequence, draft: StepDraft) -> None:
        num_tokens = sizing.ask(req, seq, draft, self._rooms.limits)
        if num_tokens == 0:
            return
        if self._make_room(req, seq, num_tokens, draft):
            self._give(req, seq, num_tokens, draft)

    def _make_room(self, req: Request, seq: Sequence, num_tokens: int, draft: StepDraft) -> bool:
        """Whether the sequence can have its blocks now, after others yielded if need be."""
        rooms = self._rooms
        missing = rooms.kv.missing(req, seq, num_tokens)
        if missing == 0:
            return True
        if rooms.pressure.refuses(seq.id, rooms.frames.next_seq):
            rooms.actions.tally.artificial_refusals += 1
            victims = rooms.victims.for_growth(req, 1, rooms.queues.running) or [req]
            self._preempt(victims, Cause.ARTIFICIAL, draft)
        elif (shortage := missing - rooms.kv.pool.num_free) > 0:
            shortage -= rooms.kv.fences.num_returning  # these come back without an eviction
            draft.under_pressure = True
            if shortage > 0:
                victims = rooms.victims.for_growth(req, shortage, rooms.queues.running)
                self._preempt(victims, Cause.BLOCKS, draft)
        if not isinstance(req.state, Running):
            return False
        fits = rooms.kv.missing(req, seq, num_tokens) <= rooms.kv.pool.num_free
        rooms.actions.tally.stalled_rows += not fits
        return fits

    def _preempt(self, victims: list[Request], cause: Cause, draft: StepDraft) -> None:
        for victim in victims:
            self._rooms.actions.preempt(victim, cause, draft)
            draft.under_pressure = True

    def _give(self, req: Request, seq: Sequence, num_tokens: int, draft: StepDraft) -> None:
        blocks, clone = self._rooms.kv.grow(req, seq, num_tokens)
        draft.add_growth(seq, blocks, clone)
        draft.add(seq, num_tokens)

    def _admit_waiting(self, draft: StepDraft, defers: bool) -> None:
        rooms = self._rooms
        while (req := self._next()) is not None:
            if isinstance(req.state, Loaded):
                self._start_loaded(req, req.state, draft)
                continue
            match self._may_start(req, draft, defers):
                case Start(probe=probe) if rooms.loads.offered(req, probe):
                    rooms.loads.order(req, probe, draft)
                    continue
                case Start(probe=probe):
                    draft.admitted.append((req, rooms.actions.start(req, probe, draft)))
                case BringBack(host=host):
                    rooms.actions.bring_back(req, host, draft)
                    draft.admitted.append((req, JoinKind.SWAPPED_IN))
                case Stop():
                    break
            self._first_tokens(req, draft)
        for req in list(rooms.queues.parked):  # whoever has its blocks waits for nobody
            if isinstance(req.state, Loaded):
                self._start_loaded(req, req.state, draft)

    def _next(self) -> Request | None:
        """The first in order of those that wait and those whose loads are complete."""
        queues = self._rooms.queues
        loaded = [req for req in queues.parked if isinstance(req.state, Loaded)]
        return min(loaded[:1] + queues.waiting[:1], key=lambda req: req.order, default=None)

    def _may_start(self, req: Request, draft: StepDraft, defers: bool) -> Verdict:
        rooms = self._rooms
        if draft.under_pressure and not self._is_urgent(req):
            return Stop()  # admitting into a shortage only feeds the next eviction
        if defers and self._needs_prefill(req):
            return Stop()
        if draft.budget == 0 and self._is_urgent(req):
            self._take_budget_for(req, draft)
        verdict = rooms.admission.decide(req, draft)
        # again while it lacks room: a hit may cost a block once its last holder has yielded
        while isinstance(verdict, Stop) and self._evict_for(req, verdict, draft):
            verdict = rooms.admission.has_room(req, draft)
        if isinstance(verdict, Start) and rooms.loads.offered(req, verdict.probe) and draft.copies:
            return Stop()  # a load is not ordered with copies: it might write what they read
        return verdict

    def _needs_prefill(self, req: Request) -> bool:
        """Whether starting means more than the one token of a decoder; loads compute nothing."""
        if isinstance(req.state, Swapped):
            return not req.is_decoding
        probe = self._rooms.kv.probe(req)
        if self._rooms.loads.offered(req, probe):
            return False
        (hits, *_), size = probe.hits, self._rooms.limits.block_size
        return len(req.live) > 1 or req.live[0].known - len(hits) * size > 1

    def _start_loaded(self, req: Request, loaded: Loaded, draft: StepDraft) -> None:
        """It has had its place and all its blocks since the load was ordered."""
        self._rooms.loads.take_in(req)
        draft.admitted.append((req, self._rooms.actions.start_loaded(req, loaded, draft)))
        self._first_tokens(req, draft)

    def _is_urgent(self, req: Request) -> bool:
        if self._rooms.limits.rules.urgency is Urgency.WAITS:
            return False
        running = self._rooms.queues.running
        return bool(running) and req.order[0] < running[-1].order[0]

    def _take_budget_for(self, req: Request, draft: StepDraft) -> None:
        """Prompt chunks of strictly less urgent requests wait a step for a more urgent one.

        All their blocks are theirs since admission, so there is nothing else to undo.
        """
        for other in reversed(self._rooms.queues.running):
            if other.order[0] <= req.order[0]:
                return
            for seq in other.live:
                if draft.planned.get(seq, 0) > 1:
                    draft.take_back(seq)

    def _evict_for(self, req: Request, stop: Stop, draft: StepDraft) -> bool:
        """Whether strictly less urgent requests yielded for a waiting one that lacks only room."""
        rooms = self._rooms
        blocks = max(0, stop.blocks_short - rooms.kv.fences.num_returning)
        waits = rooms.limits.rules.urgency is Urgency.WAITS
        if waits or not (blocks or stop.seats_short):
            return False
        victims = rooms.victims.for_urgent(req, blocks, stop.seats_short, rooms.queues.running)
        self._preempt(victims, Cause.URGENT, draft)
        return bool(victims)

    def _first_tokens(self, req: Request, draft: StepDraft) -> None:
        """Plans what the budget leaves for a request that was just admitted."""
        for seq in req.live:
            num_tokens = sizing.ask(req, seq, draft, self._rooms.limits)
            missing = self._rooms.kv.missing(req, seq, num_tokens)
            if num_tokens and missing <= self._rooms.kv.pool.num_free:
                self._give(req, seq, num_tokens, draft)
                self._rooms.kv.publish(seq, seq.computed + num_tokens)
