"""How many tokens may a sequence compute in this step?"""

from forebay.core.draft import StepDraft
from forebay.core.limits import Limits
from forebay.core.request import Request, Sequence


def ask(request: Request, seq: Sequence, draft: StepDraft, limits: Limits) -> int:
    """Tokens that the step's budget and the request's own chunk limit leave for it; 0 for none.

    A branch of a group being recomputed gets none before the blocks it shares are computed, in
    this step at the earliest.
    """
    wanted = seq.to_compute
    if wanted == 0 or seq in draft.planned:
        return 0
    if request.shared_tokens and _waits_for_leader(request, seq, draft):
        return 0
    if wanted > 1 and limits.long_prefill_token_threshold:
        wanted = min(wanted, limits.long_prefill_token_threshold)
    return min(wanted, draft.budget)


def _waits_for_leader(request: Request, seq: Sequence, draft: StepDraft) -> bool:
    leader = request.live[0]
    if seq is leader:
        return False
    return leader.computed + draft.planned.get(leader, 0) < request.shared_tokens
