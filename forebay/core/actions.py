"""What the loops decide is applied here, and only here: start, bring back, preempt, end."""

from forebay.core.draft import StepDraft
from forebay.core.effects import (
    Cause,
    Effect,
    Ended,
    JoinKind,
    Leave,
    LeaveKind,
    Preempted,
    RequestReport,
    Yield,
)
from forebay.core.events import FinishReason
from forebay.core.frames import Frames
from forebay.core.gauges import Tally
from forebay.core.kv import KvSpace, Probe
from forebay.core.lifecycle import (
    Finished,
    Loaded,
    Move,
    Queued,
    QueuedWhy,
    Running,
    Swapped,
    advance,
)
from forebay.core.queues import Queues
from forebay.core.request import Request, Sequence, every_sequence
from forebay.core.swap import HostRun
from forebay.core.victims import Victims
from forebay.units import Nanos, RequestId, SeqId, StepSeq


class Actions:
    """Changes requests, tables and queues together, so that they never disagree."""

    def __init__(self, kv: KvSpace, queues: Queues, frames: Frames, victims: Victims) -> None:
        self._kv = kv
        self._queues = queues
        self._frames = frames
        self._victims = victims
        self.tally = Tally()
        self.batch: set[SeqId] = set()
        """Rows that the executor has after the steps planned so far."""
        self.leaving: list[Leave] = []
        self.ended: list[RequestId] = []
        """Told to the executor with the next step."""
        self.told: list[Effect] = []
        """What planning itself brought about; the next `Scheduler.tick` tells the driver."""

    def start(self, request: Request, probe: Probe, draft: StepDraft) -> JoinKind:
        """Queued -> Running, with blocks for all its known tokens."""
        kind = self._note_start(request, len(probe.hits[0]) * self._kv.block_size, draft)
        advance(request, Move.START, Running(), self._queues)
        self._kv.admit(request, probe)
        return kind

    def start_loaded(self, request: Request, loaded: Loaded, draft: StepDraft) -> JoinKind:
        """Loaded -> Running, with the blocks that it has."""
        kind = self._note_start(request, loaded.num_hit_tokens, draft)
        advance(request, Move.START, Running(), self._queues)
        return kind

    def _note_start(self, request: Request, num_cached: int, draft: StepDraft) -> JoinKind:
        request.prefill_until = request.live[0].known
        if request.admitted_once:
            return JoinKind.RESUMED
        request.admitted_once = True
        request.queue_ns = Nanos(draft.now - request.spec.arrival_ns)
        request.cached_tokens = num_cached
        self.tally.cached_prompt_tokens += num_cached
        return JoinKind.NEW

    def bring_back(self, request: Request, host: HostRun, draft: StepDraft) -> None:
        """Swapped -> Running; the copies run before this step computes."""
        advance(request, Move.SWAP_IN, Running(), self._queues)
        copies = self._kv.swap_in(request, host)
        draft.copies.extend(copies)
        self.tally.swapped_in_blocks += len(copies)

    def preempt(self, request: Request, cause: Cause, draft: StepDraft) -> None:
        """Running -> Queued or Swapped. All that it got in this step is handed back."""
        draft.undo(request)
        how = self._victims.how(request)
        freed = self._kv.num_freed_by([request])
        tokens = sum(seq.computed for seq in request.live)
        kind = LeaveKind.SWAP if how is Yield.SWAP else LeaveKind.RECOMPUTE
        draft.left.extend(self._leave(seq, kind) for seq in request.live if seq.id in self.batch)
        if how is Yield.SWAP:
            self._swap_out(request, draft)
        else:
            self.tally.swaps_without_room += self._victims.lacks_host_room(request)
            self._drop_progress(request, draft)
        request.num_preemptions += 1
        draft.preempted.append(Preempted(request.id, how, cause, freed, tokens))

    def _swap_out(self, request: Request, draft: StepDraft) -> None:
        run, copies = self._kv.swap_out(request, self._frames.next_seq)
        draft.copies.extend(copies)
        request.num_swaps += 1
        request.swapped_blocks += len(copies)
        self.tally.preemptions_swap += 1
        self.tally.swapped_out_blocks += len(copies)
        advance(request, Move.YIELD_SWAP, Swapped(run), self._queues)

    def _drop_progress(self, request: Request, draft: StepDraft) -> None:
        # a clone that it was to get stays in the step, and writes
        last_step = self._frames.next_seq if draft.copies else self._last_step(request)
        for seq in request.live:
            self._kv.withdraw(seq)
            self._kv.release(seq, last_step)
            seq.computed = seq.published = 0
        request.shared_tokens = 0
        self.tally.preemptions_recompute += 1
        advance(request, Move.YIELD_RECOMPUTE, Queued(QueuedWhy.PREEMPTED), self._queues)

    def end(self, request: Request, seq: Sequence, reason: FinishReason, now: Nanos) -> Effect:
        """A sequence ends. With the last one of a request everything it holds is let go."""
        seq.finish = reason
        if seq.id in self.batch:
            self.leaving.append(self._leave(seq, LeaveKind.FINISHED))
        self._kv.release(seq, self._last_step(request))
        report = None
        if not request.live:
            report = self._close(request, reason, now)
        return Ended(seq.id, reason, seq.known - request.spec.num_prompt, report)

    def give_up(self, request: Request, draft: StepDraft) -> None:
        """A waiting request that can never start, or a swapped one that can never return, ends."""
        for seq in every_sequence(request):
            self.told.append(self.end(request, seq, FinishReason.IGNORED, draft.now))
        draft.ignored.append(request)

    def _close(self, request: Request, reason: FinishReason, now: Nanos) -> RequestReport:
        if isinstance(request.state, Swapped):
            self._kv.drop_swapped(request.state.host, reason)
        advance(request, Move.END, Finished(reason), self._queues)
        self.ended.append(request.id)
        self.tally.requests_ended += 1
        return RequestReport(
            num_preemptions=request.num_preemptions,
            num_swaps=request.num_swaps,
            recomputed_tokens=request.recomputed_tokens,
            cached_tokens=request.cached_tokens,
            swapped_blocks=request.swapped_blocks,
            queue_ns=request.queue_ns,
            total_ns=Nanos(now - request.spec.arrival_ns),
        )

    def _leave(self, seq: Sequence, kind: LeaveKind) -> Leave:
        self.batch.discard(seq.id)
        return Leave(seq.id, kind)

    def _last_step(self, request: Request) -> StepSeq | None:
        """The newest step in flight that may touch the request's blocks: branches share them."""
        steps = [self._frames.last_with(seq) for seq in request.sequences]
        return max((step for step in steps if step is not None), default=None)
