"""vLLM V0's two loops: prompts first, or prompts in chunks beside decodes.

Three passes, each over one queue from its head. Prompts start with all their blocks at once.
Running groups each want one free block per sequence, and the last of the queue yields for the
first. Swapped groups come back before any prompt is looked at (prompts first), or before
new prompts of the same step (chunked). Source: vLLM 0.5.5, `vllm/core/scheduler.py`.
"""

from collections import deque
from dataclasses import dataclass, field

from forebay.core import sizing
from forebay.core.draft import StepDraft
from forebay.core.effects import Cause, JoinKind
from forebay.core.lifecycle import Swapped
from forebay.core.loops.vllm_v0_space import Alloc, DelayGate, Space
from forebay.core.policies import SwapInSize
from forebay.core.request import Request
from forebay.core.rooms import Rooms
from forebay.core.three_queues import ThreeQueues


@dataclass(slots=True)
class Pass:
    """What one pass over a queue has scheduled, and whom it did not reach."""

    chunks: list[Request] = field(default_factory=list)
    decodes: list[Request] = field(default_factory=list)
    not_reached: list[Request] = field(default_factory=list)

    def add(self, request: Request) -> None:
        """Notes a group before its tokens count as computed."""
        (self.chunks if request.is_prefilling else self.decodes).append(request)


class VllmV0Loop:
    """Plans one step as vLLM V0 does."""

    def __init__(self, rooms: Rooms) -> None:
        assert isinstance(rooms.queues, ThreeQueues)
        self._rooms = rooms
        self._queues = rooms.queues
        self._space = Space(rooms.limits, rooms.kv)
        self._delay = DelayGate(rooms.limits.rules.prompt_delay)

    def plan(self, draft: StepDraft) -> None:
        """Fills the draft, then puts the running queue into the reference's order."""
        if self._rooms.limits.chunked_prefill:
            self._plan_chunked(draft)
        else:
            self._plan_prompts_first(draft)

    def _plan_prompts_first(self, draft: StepDraft) -> None:
        """If nothing is swapped, prompts; if none starts, decodes, then swap-ins."""
        before = Pass(not_reached=list(self._queues.running))
        prompts: list[Request] = []
        if not self._queues.swapped:
            prompts = self._start_prompts(before.not_reached, draft)
        ran = before if prompts else self._run(draft)
        back = Pass() if prompts or draft.preempted else self._bring_back(draft)
        self._settle(prompts, ran, back)

    def _plan_chunked(self, draft: StepDraft) -> None:
        """Running groups, then swap-ins if nobody yielded, then prompts in any case."""
        ran = self._run(draft)
        back = Pass() if draft.preempted else self._bring_back(draft)
        # What the reference's delay takes for "running" are those that this step did not reach.
        prompts = self._start_prompts(ran.not_reached, draft)
        self._settle(prompts, ran, back)

    def _settle(self, prompts: list[Request], ran: Pass, back: Pass) -> None:
        order = ran.not_reached + prompts + ran.decodes + ran.chunks + back.decodes + back.chunks
        self._queues.settle(order)

    # -- running ------------------------------------------------------------------------

    def _run(self, draft: StepDraft) -> Pass:
        ran = Pass()
        queue = deque(self._queues.running)
        while queue:
            request = queue[0]
            num_tokens = self._ask(request, draft)
            if num_tokens == 0:
                break
            queue.popleft()
            if not self._make_room(request, queue, draft):
                continue
            if num_tokens > draft.budget:  # a group's decodes; the reference stops on an assertion
                queue.appendleft(request)
                break
            ran.add(request)
            self._give(request, draft)
        ran.not_reached = list(queue)
        return ran

    def _make_room(self, request: Request, behind: deque[Request], draft: StepDraft) -> bool:
        """Whether the group can grow, after those at the tail yielded; at last it yields itself."""
        rooms = self._rooms
        cause = Cause.BLOCKS
        if rooms.pressure.refuses(request.live[0].id, rooms.frames.next_seq):
            rooms.actions.tally.artificial_refusals += 1
            cause = Cause.ARTIFICIAL
        while cause is Cause.ARTIFICIAL or not self._space.can_append(request):
            victim = behind.pop() if behind else request
            rooms.actions.preempt(victim, cause, draft)
            cause = Cause.BLOCKS
            if victim is request:
                return False
        return True

    # -- swapped ------------------------------------------------------------------------

    def _bring_back(self, draft: StepDraft) -> Pass:
        back = Pass()
        while self._queues.swapped:
            request = self._queues.swapped[0]
            assert isinstance(request.state, Swapped)
            host = request.state.host
            verdict = self._space.can_swap_in(request, host)
            if verdict is Alloc.NEVER:
                self._rooms.actions.give_up(request, draft)
                continue
            if verdict is Alloc.LATER or not self._has_place(request, draft):
                break
            self._rooms.actions.bring_back(request, host, draft)
            draft.admitted.append((request, JoinKind.SWAPPED_IN))
            back.add(request)
            self._give(request, draft)
        return back

    # -- waiting ------------------------------------------------------------------------

    def _start_prompts(self, others: list[Request], draft: StepDraft) -> list[Request]:
        """Admits from the head of waiting; `others`: whom the delay counts as running."""
        rooms = self._rooms
        started: list[Request] = []
        while self._delay.is_open(draft.now, self._queues.queued, others) and self._queues.queued:
            request = self._queues.queued[0]
            probe = rooms.kv.probe(request)
            verdict = self._space.can_allocate(probe.cost)
            if self._is_too_long(request, draft) or verdict is Alloc.NEVER:
                rooms.actions.give_up(request, draft)
                continue
            if verdict is Alloc.LATER or not self._has_place(request, draft):
                break
            draft.admitted.append((request, rooms.actions.start(request, probe, draft)))
            started.append(request)
            self._give(request, draft)
        if started:
            self._delay.note_admitted()
        return started

    def _is_too_long(self, request: Request, draft: StepDraft) -> bool:
        """Chunks are measured by what this step would compute of them, as the reference does."""
        limits = self._rooms.limits
        if request.forked:
            return False
        if limits.chunked_prefill:
            return self._ask(request, draft) > limits.max_model_len
        longest = min(limits.max_model_len, limits.max_num_batched_tokens)
        return request.live[0].known > longest

    # -- tokens and seats ---------------------------------------------------------------

    def _has_place(self, request: Request, draft: StepDraft) -> bool:
        """Whether budget and seats are left for a group that does not run yet."""
        num_tokens = self._ask(request, draft)
        if num_tokens == 0 or num_tokens > draft.budget:
            return False
        taken = sum(req.num_seats for req in self._queues.running)
        return taken + request.num_seats <= self._rooms.limits.max_num_seqs

    def _ask(self, request: Request, draft: StepDraft) -> int:
        """Tokens that the group wants in this step, cut to the budget where it may be chunked.

        A group that is computed again (the reference cannot) takes as many steps as it needs.
        """
        live = request.live
        wanted = sum(seq.to_compute for seq in live)
        whole = isinstance(request.state, Swapped) and (
            self._rooms.limits.rules.swap_in_size is SwapInSize.WHOLE
        )
        chunked = self._rooms.limits.chunked_prefill and len(live) == 1 and not whole
        if chunked or (request.forked and wanted > len(live)):
            return min(wanted, draft.budget)
        return wanted

    def _give(self, request: Request, draft: StepDraft) -> None:
        for seq in request.live:
            num_tokens = sizing.ask(request, seq, draft, self._rooms.limits)
            if num_tokens:
                blocks, clone = self._rooms.kv.grow(request, seq, num_tokens)
                draft.add_growth(seq, blocks, clone)
                draft.add(seq, num_tokens)
