from typing import Any

import pytest

from forebay.core.effects import Refuse, RefuseReason
from forebay.core.events import FinishReason
from forebay.core.intake import Join, judge
from forebay.core.limits import Policy
from tests.unit.core.parts import arrive, limits


@pytest.mark.parametrize(
    ("shape", "more", "reason", "message"),
    [
        ({"p": 0}, {}, RefuseReason.BAD_SHAPE, "prompt is empty"),
        ({"m": 0}, {}, RefuseReason.BAD_SHAPE, "max_tokens is 0"),
        ({"num_branches": 0}, {}, RefuseReason.BAD_SHAPE, "n is 0"),
        ({"num_branches": 9}, {}, RefuseReason.BAD_SHAPE, "n is 9: 1 to 8"),
        ({"num_branches": 3}, {"max_num_seqs": 2}, RefuseReason.BAD_SHAPE, "max_num_seqs 2"),
        (
            {"num_branches": 3},
            {"max_num_batched_tokens": 2},
            RefuseReason.BAD_SHAPE,
            "max_num_batched_tokens 2",
        ),
        ({"p": 20}, {"max_model_len": 20}, RefuseReason.TOO_LONG, "at most 19 fit"),
        (
            {"p": 20},
            {"chunked_prefill": False, "max_num_batched_tokens": 19},
            RefuseReason.TOO_LONG,
            "without chunked prefill",
        ),
        ({"p": 33}, {}, RefuseReason.NEVER_FITS, "need 9 blocks of 4 tokens"),
        ({"p": 33, "num_branches": 2}, {}, RefuseReason.NEVER_FITS, "the pool has 8"),
    ],
)
def test_what_is_refused_and_what_is_said(
    shape: Any, more: Any, reason: RefuseReason, message: str
) -> None:
    got = judge(arrive(**shape), limits(**more))
    assert isinstance(got, Refuse)
    assert got.reason is reason
    assert message in got.message


@pytest.mark.parametrize(
    ("shape", "more", "limit", "reason"),
    [
        ({"p": 6, "m": 10}, {}, 16, FinishReason.LENGTH),
        ({"p": 6, "m": 27}, {}, 33, FinishReason.LENGTH),
        ({"p": 6, "m": 28}, {}, 33, FinishReason.KV_CAPACITY),
        ({"p": 6, "m": 28}, {"max_model_len": 20}, 20, FinishReason.LENGTH),
        ({"p": 32, "m": 9}, {}, 33, FinishReason.KV_CAPACITY),
        ({"p": 8, "m": 99, "num_branches": 3}, {}, 17, FinishReason.KV_CAPACITY),
        ({"p": 6, "m": 99, "num_branches": 3}, {}, 13, FinishReason.KV_CAPACITY),
        ({"p": 31, "m": 9, "num_branches": 2}, {}, 32, FinishReason.KV_CAPACITY),
    ],
)
def test_how_long_a_request_may_become(
    shape: Any, more: Any, limit: int, reason: FinishReason
) -> None:
    got = judge(arrive(**shape), limits(**more))
    assert isinstance(got, Join)
    assert (got.request.limit, got.request.limit_reason) == (limit, reason)
    assert got.request.sequences[0].limit == limit
    assert (got.capped is not None) == (reason is FinishReason.KV_CAPACITY)
    if got.capped:
        assert got.capped.max_tokens == limit - shape["p"]


@pytest.mark.parametrize(("policy", "priority"), [(Policy.FCFS, 0), (Policy.PRIORITY, 7)])
def test_priority_counts_under_its_policy_only(policy: Policy, priority: int) -> None:
    got = judge(arrive(3, priority=7), limits(policy=policy))
    assert isinstance(got, Join)
    assert got.request.order == (priority, 3, 3)
