import pytest

from forebay.core import sizing
from forebay.core.draft import StepDraft
from forebay.core.request import add_branches
from tests.unit.core.parts import limits, request


@pytest.mark.parametrize(
    ("known", "computed", "pending", "budget", "threshold", "wanted"),
    [
        (6, 0, 0, 99, 0, 6),
        (6, 0, 0, 4, 0, 4),
        (6, 0, 0, 0, 0, 0),
        (6, 0, 0, 99, 5, 5),
        (6, 0, 0, 3, 5, 3),
        (7, 6, 0, 99, 1, 1),
        (6, 6, 1, 99, 0, 1),
        (6, 6, 0, 99, 0, 0),
        (15, 14, 1, 99, 0, 0),
        (15, 14, 0, 99, 0, 1),
    ],
)
def test_tokens_a_sequence_may_compute(
    known: int, computed: int, pending: int, budget: int, threshold: int, wanted: int
) -> None:
    req = request(p=6, m=10)
    (seq,) = req.sequences
    seq.known, seq.computed, seq.pending = known, computed, pending
    draft = StepDraft.start(limits(max_num_batched_tokens=budget), 0)
    lim = limits(long_prefill_token_threshold=threshold)
    assert sizing.ask(req, seq, draft, lim) == wanted


def test_a_sequence_is_planned_once_a_step() -> None:
    req = request()
    draft = StepDraft.start(limits(), 0)
    draft.add(req.sequences[0], 3)
    assert sizing.ask(req, req.sequences[0], draft, limits()) == 0


@pytest.mark.parametrize(
    ("computed", "planned", "asks"), [(0, 0, 0), (4, 3, 0), (4, 4, 1), (8, 0, 1)]
)
def test_a_replayed_branch_waits_for_the_blocks_it_shares(
    computed: int, planned: int, asks: int
) -> None:
    req = request(p=9, num_branches=2)
    (branch,) = add_branches(req)
    leader = req.sequences[0]
    leader.computed, branch.computed, req.shared_tokens = computed, 8, 8
    draft = StepDraft.start(limits(), 0)
    if planned:
        draft.add(leader, planned)
    assert sizing.ask(req, branch, draft, limits()) == asks
