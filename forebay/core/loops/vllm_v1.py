"""The loop of vLLM 0.25.1's V1 scheduler: running requests in order, then parked and waiting ones.

One victim at a time yields until the asking request fits or is itself the victim. A step with a
victim admits nobody, and the first request that does not fit ends admission.
"""

from forebay.core import sizing
from forebay.core.draft import StepDraft
from forebay.core.effects import Cause
from forebay.core.lifecycle import Loaded
from forebay.core.limits import Policy
from forebay.core.loops.vllm_v1_admission import (
    BeginLoad,
    Start,
    StartLoaded,
    Stop,
    VllmV1Admission,
)
from forebay.core.policies import CursorRule
from forebay.core.request import Request, Sequence
from forebay.core.rooms import Rooms


class VllmV1Loop:
    """Plans one step into a draft."""

    def __init__(self, rooms: Rooms) -> None:
        self._rooms = rooms
        self._admission = VllmV1Admission(rooms)

    def plan(self, draft: StepDraft) -> None:
        """Fills the draft: who runs, who yields, who starts."""
        rooms = self._rooms
        decoding = any(not rooms.throttle.in_prefill(req) for req in rooms.queues.running)
        defers = rooms.throttle.defers(draft, protects=decoding)
        self._continue_running(draft, defers)
        if not draft.preempted:
            self._admit(draft, defers)
        rooms.throttle.note_step(draft, len(rooms.queues.waiting), deferred=defers)

    # -- who runs ----------------------------------------------------------------------

    def _continue_running(self, draft: StepDraft, defers: bool) -> None:
        rooms = self._rooms
        running = rooms.queues.running  # victims leave it meanwhile
        cursor = 0
        while cursor < len(running) and draft.budget > 0:
            req = running[cursor]
            (seq,) = req.live
            num_tokens = sizing.ask(req, seq, draft, rooms.limits)
            if num_tokens == 0 or (defers and rooms.throttle.in_prefill(req)):
                cursor += 1
                continue
            while rooms.kv.missing(req, seq, num_tokens) > rooms.kv.pool.num_free:
                victim = self._victim()
                cursor -= self._step_back(victim, cursor, draft)
                rooms.actions.preempt(victim, Cause.BLOCKS, draft)
                if victim is req:
                    return
            self._give(req, seq, num_tokens, draft)
            cursor += 1

    def _victim(self) -> Request:
        """The newest; under the priority policy the least urgent, of these the latest arrival."""
        running = self._rooms.queues.running
        if self._rooms.limits.policy is Policy.FCFS:
            return running[-1]
        return max(running, key=lambda req: req.order[:2])

    def _step_back(self, victim: Request, cursor: int, draft: StepDraft) -> int:
        """By how much the cursor moves when a victim leaves the running list."""
        if self._rooms.limits.rules.cursor is CursorRule.VLLM_0_25:
            return int(any(seq in draft.planned for seq in victim.live))
        return int(self._rooms.queues.running.index(victim) < cursor)

    def _give(self, req: Request, seq: Sequence, num_tokens: int, draft: StepDraft) -> None:
        blocks, clone = self._rooms.kv.grow(req, seq, num_tokens)
        draft.add_growth(seq, blocks, clone)
        draft.add(seq, num_tokens)
        self._rooms.throttle.note_chunk(seq, num_tokens)
        self._rooms.kv.publish(seq, seq.computed + num_tokens)

    # -- who starts --------------------------------------------------------------------

    def _admit(self, draft: StepDraft, defers: bool) -> None:
        rooms = self._rooms
        while draft.budget > 0 and len(rooms.queues.running) < rooms.limits.max_num_seqs:
            req = self._next()
            if req is None:
                return
            if isinstance(req.state, Loaded):
                rooms.loads.take_in(req)
            match self._admission.decide(req, draft, defers):
                case Stop():
                    return
                case BeginLoad(probe=probe):
                    rooms.loads.order(req, probe, draft)
                    continue
                case StartLoaded(loaded=loaded):
                    kind = rooms.actions.start_loaded(req, loaded, draft)
                case Start(probe=probe):
                    kind = rooms.actions.start(req, probe, draft)
            draft.admitted.append((req, kind))
            (seq,) = req.live
            self._give(req, seq, sizing.ask(req, seq, draft, rooms.limits), draft)

    def _next(self) -> Request | None:
        """The first complete load, else the first that waits; by priority, the more urgent.

        Loads under way are looked at again in the next step.
        """
        queues = self._rooms.queues
        loaded = next((req for req in queues.parked if isinstance(req.state, Loaded)), None)
        waiting = queues.waiting[0] if queues.waiting else None
        if loaded is None or waiting is None:
            return loaded or waiting
        if self._rooms.limits.policy is Policy.FCFS or loaded.order < waiting.order:
            return loaded
        return waiting
