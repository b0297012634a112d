"""Are prefills held back in this step? For engines that keep their steps short together.

Source: the prefill throttle of vLLM 0.25.1. A driver asks for it step by step; it is refused
while requests wait for capacity (saturation: holding back would only delay them) and where
nobody decodes, since then there is nothing to protect.
"""

from forebay.core.draft import StepDraft
from forebay.core.request import Request, Sequence

_MEMORY = 1 / 32  # weight of one more step in the moving average


class Throttle:
    """Remembers whether the engine was saturated, and who is in the middle of a prefill."""

    def __init__(self) -> None:
        self.capacity_bound = False
        """Whether requests were left waiting by the last step that could admit."""
        self.share = 0.0
        """Share of steps that were held back lately; below 1."""
        self._in_prefill: dict[Sequence, None] = {}

    def defers(self, draft: StepDraft, *, protects: bool) -> bool:
        """Whether this step holds prefills back; `protects`: somebody decodes."""
        return draft.throttled and not self.capacity_bound and protects

    def in_prefill(self, request: Request) -> bool:
        """Whether its latest chunk leaves known tokens uncomputed."""
        return any(seq in self._in_prefill for seq in request.live)

    def note_chunk(self, seq: Sequence, num_tokens: int) -> None:
        """A sequence was promised tokens in this step."""
        if seq.computed + num_tokens < seq.total:
            self._in_prefill[seq] = None
        else:
            self._in_prefill.pop(seq, None)

    def note_step(self, draft: StepDraft, num_waiting: int, *, deferred: bool) -> None:
        """The step is planned. `num_waiting` does not count parked requests."""
        self.share += _MEMORY * (deferred - self.share)
        if not (deferred or draft.preempted):
            self.capacity_bound = num_waiting > 0
        for seq in [seq for seq in self._in_prefill if seq.finish is not None]:
            del self._in_prefill[seq]
