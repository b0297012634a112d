"""The machine: `handle` takes events in, `plan` decides the next step, and nothing else happens.

Drivers (the live engine, the simulator, tests) call, in any order and from one thread::

    effects = scheduler.handle(event, now)     # arrivals, aborts, steps done
    effects = scheduler.tick(now)              # deadlines
    step = scheduler.plan(now)                 # None: nothing to do, or enough steps in flight

Every step returned must be executed and reported with `StepDone`, in order.
"""

import heapq
from typing import assert_never

from forebay.core import intake
from forebay.core.draft import StepDraft
from forebay.core.effects import Chunk, Effect, Fork, Grow, Join, Refuse, Step
from forebay.core.events import (
    Abort,
    Arrive,
    Event,
    FinishReason,
    LoadDone,
    LoadFailed,
    StepDone,
)
from forebay.core.frames import Frame
from forebay.core.gauges import Gauges, Tally
from forebay.core.lifecycle import Running
from forebay.core.limits import Limits
from forebay.core.loops import build_loop
from forebay.core.policies import Publishing
from forebay.core.request import Request, Sequence, add_branches, every_sequence
from forebay.core.rooms import Rooms
from forebay.errors import InvariantError
from forebay.units import Nanos, RequestId, SeqId, request_of


class Scheduler:
    """Continuous batching over a paged KV cache, with preemption. Deterministic and pure."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.rooms = Rooms.build(limits)
        self.requests: dict[RequestId, Request] = {}
        """All requests that have not ended."""
        self._loop = build_loop(self.rooms)
        self._deadlines: list[tuple[Nanos, RequestId]] = []

    # -- what happened -----------------------------------------------------------------

    def handle(self, event: Event, now: Nanos) -> list[Effect]:
        """Takes in one event; returns who ended, was refused or capped by it."""
        match event:
            case Arrive():
                return self._on_arrive(event)
            case Abort(request_id=request_id, reason=reason):
                return self._end_all(self.requests.get(request_id), reason, now)
            case StepDone():
                return self._on_step_done(event, now)
            case LoadDone(load_id=load_id):
                self.rooms.loads.done(load_id)
                return []
            case LoadFailed(load_id=load_id):
                self.rooms.loads.failed(load_id)
                return []
            case _:
                assert_never(event)

    def tick(self, now: Nanos) -> list[Effect]:
        """Ends every request whose deadline has passed, and tells what planning has ended."""
        effects, self.rooms.actions.told = self.rooms.actions.told, []
        while self._deadlines and self._deadlines[0][0] <= now:
            _, request_id = heapq.heappop(self._deadlines)
            request = self.requests.get(request_id)
            effects += self._end_all(request, FinishReason.DEADLINE, now)
        return effects

    def next_wakeup(self) -> Nanos | None:
        """When `tick` has something to do next, if ever."""
        if self.rooms.actions.told:
            return Nanos(0)
        while self._deadlines and self._deadlines[0][1] not in self.requests:
            heapq.heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else None

    def _on_arrive(self, spec: Arrive) -> list[Effect]:
        if spec.request_id in self.requests:
            raise InvariantError(f"request id {spec.request_id} is in use")
        self.tally.requests_arrived += 1
        verdict = intake.judge(spec, self.limits)
        if isinstance(verdict, Refuse):
            self.tally.requests_refused += 1
            return [verdict]
        self.requests[spec.request_id] = verdict.request
        self.rooms.queues.insert(verdict.request)
        if spec.deadline_ns is not None:
            heapq.heappush(self._deadlines, (spec.deadline_ns, spec.request_id))
        return [verdict.capped] if verdict.capped else []

    def _on_step_done(self, done: StepDone, now: Nanos) -> list[Effect]:
        frame = self.rooms.frames.pop(done.seq)
        self.rooms.kv.fences.drop_until(done.seq)
        effects: list[Effect] = []
        stops = set(done.stops)
        for filled in done.filled:
            if filled.seq_id not in stops:  # whether a stop's own KV is written is left open
                self._note_hash(filled.seq_id, filled.index, filled.hash)
        for seq in frame.sampling:
            if seq.finish is not None:
                continue  # ended while this step was in flight: its token is dropped
            seq.pending -= 1
            seq.known += 1
            request = self.requests[request_of(seq.id)]
            self._note_token(request, seq)
            if seq.id in stops:
                self.rooms.outlook.note_stopped(seq.known - request.spec.num_prompt)
                effects += self._end(request, seq, FinishReason.STOP, now)
            elif seq.known >= seq.limit:
                effects += self._end(request, seq, request.limit_reason, now)
        return effects

    def _note_token(self, request: Request, seq: Sequence) -> None:
        """A token came back; under by-grant publishing a block may have waited for it."""
        by_grant = self.limits.rules.publishing is Publishing.GRANT
        if by_grant and isinstance(request.state, Running):
            self.rooms.kv.publish(seq, seq.computed - seq.pending)

    def _note_hash(self, seq_id: SeqId, index: int, digest: bytes) -> None:
        """A block of generated tokens is known in full; it may already be computed in full."""
        request = self.requests.get(request_of(seq_id))
        if request is None:
            return
        for seq in request.live:
            if seq.id == seq_id and index == len(seq.hashes):
                seq.hashes.append(digest)
                at_once = self.limits.rules.publishing is Publishing.STEP
                if at_once and isinstance(request.state, Running):
                    self.rooms.kv.publish(seq, seq.computed)

    def _end(
        self, request: Request, seq: Sequence, reason: FinishReason, now: Nanos
    ) -> list[Effect]:
        ended = self.rooms.actions.end(request, seq, reason, now)
        if not request.live:
            del self.requests[request.id]
        return [ended]

    def _end_all(self, request: Request | None, reason: FinishReason, now: Nanos) -> list[Effect]:
        if request is None:
            return []
        live = every_sequence(request)  # each of the sequences asked for ends, started or not
        return [effect for seq in live for effect in self._end(request, seq, reason, now)]

    # -- what to do --------------------------------------------------------------------

    def plan(self, now: Nanos, *, throttled: bool = False) -> Step | None:
        """Decides the next step. None: nothing can start now, or enough steps are in flight.

        `throttled` asks to hold prefills back in this step; see `throttle`.
        """
        if self.rooms.frames.is_full:
            return None
        draft = StepDraft.start(self.limits, now, throttled=throttled)
        self._loop.plan(draft)
        for request in draft.ignored:
            del self.requests[request.id]
        if draft.is_empty:
            return None
        return self._commit(draft)

    def _commit(self, draft: StepDraft) -> Step:
        """Turns promises into counters, and the draft into what the executor is told."""
        actions = self.rooms.actions
        step = Step(
            seq=self.rooms.frames.next_seq,
            num_tokens=sum(draft.planned.values()),
            num_rows=len(draft.planned),
            left=actions.leaving + draft.left,
            ended=actions.ended,
            copies=draft.copies,
            preempted=draft.preempted,
            loads=draft.loads,
        )
        actions.leaving, actions.ended = [], []
        self._join_rows(draft, step)
        frame = Frame(step.seq)
        for request, _ in draft.admitted:
            frame.computing.update(request.live)  # copies may fill their blocks
        for seq, num_tokens in draft.planned.items():
            self._advance(seq, num_tokens, step, frame)
        self._idle_rows(draft, step)
        for seq, blocks in draft.grown.items():
            step.grown.append(Grow(seq.id, tuple(blocks)))
        self.rooms.frames.push(frame)
        self._count(step)
        return step

    def _join_rows(self, draft: StepDraft, step: Step) -> None:
        """Rows of admitted requests enter the batch with their whole table."""
        for request, kind in draft.admitted:
            for seq in request.live:
                draft.grown.pop(seq, None)
                table = tuple(seq.table.blocks)
                step.joined.append(Join(seq.id, kind, seq.computed, seq.total, table))
                self.rooms.actions.batch.add(seq.id)

    def _advance(self, seq: Sequence, num_tokens: int, step: Step, frame: Frame) -> None:
        """Counters of one planned sequence. Rows that decode one token need no mention."""
        request = self.requests[request_of(seq.id)]
        start = seq.computed
        redone = max(0, min(seq.high_water, start + num_tokens) - start)
        request.recomputed_tokens += redone
        self.tally.recomputed_tokens += redone
        seq.computed = start + num_tokens
        seq.high_water = max(seq.high_water, seq.computed)
        samples = seq.computed == seq.total
        if num_tokens != 1 or not samples:
            step.chunks.append(Chunk(seq.id, start, num_tokens, samples))
        frame.computing.add(seq)
        self.rooms.kv.publish(seq, seq.computed)
        if samples:
            seq.pending += 1
            frame.sampling.append(seq)
            if request.spec.num_branches > 1 and not request.forked:
                self._fork(request, seq, step, frame)

    def _fork(self, request: Request, parent: Sequence, step: Step, frame: Frame) -> None:
        children = add_branches(request)
        self.rooms.kv.fork(parent, children)
        frame.sampling.extend(children)
        self.rooms.actions.batch.update(child.id for child in children)
        step.forks.append(Fork(parent.id, tuple(child.id for child in children)))

    def _idle_rows(self, draft: StepDraft, step: Step) -> None:
        just_forked = {child for fork in step.forks for child in fork.children}
        for request in self.rooms.queues.running:
            for seq in request.live:
                if seq not in draft.planned and seq.id not in just_forked:
                    step.idle.append(seq.id)

    def _count(self, step: Step) -> None:
        pool = self.rooms.kv.pool
        self.tally.steps += 1
        self.tally.tokens += step.num_tokens
        active = pool.num_blocks - pool.num_free
        self.tally.peak_active_blocks = max(self.tally.peak_active_blocks, active)

    # -- what it tells -----------------------------------------------------------------

    @property
    def tally(self) -> Tally:
        """Counters since start."""
        return self.rooms.actions.tally

    @property
    def has_work(self) -> bool:
        """Whether any request has not ended, a load is under way, or an end is still untold."""
        return bool(self.requests) or len(self.rooms.loads) > 0 or bool(self.rooms.actions.told)

    @property
    def num_in_flight(self) -> int:
        """Steps planned and not done."""
        return len(self.rooms.frames)

    def gauges(self) -> Gauges:
        """The pool and the queues now."""
        kv, queues = self.rooms.kv, self.rooms.queues
        fenced = kv.fences.num_returning
        free = kv.pool.num_free
        cached = kv.pool.num_cached
        return Gauges(
            num_running=len(queues.running),
            num_waiting=len(queues.waiting) - queues.num_swapped,
            num_swapped=queues.num_swapped,
            blocks_total=kv.pool.num_blocks,
            blocks_active=kv.pool.num_blocks - free - fenced,
            blocks_fenced=fenced,
            blocks_cached=cached,
            blocks_free=free - cached,
            host_total=kv.host.num_slots,
            host_used=kv.host.num_slots - kv.host.num_free - kv.host.num_leaked,
            host_leaked=kv.host.num_leaked,
            num_in_flight=self.num_in_flight,
        )
