"""Policy values that only the reference presets use, in the rooms that read them."""

from dataclasses import replace
from typing import Any

import pytest

from forebay.core.effects import Refuse, Yield
from forebay.core.events import FinishReason
from forebay.core.intake import Join, judge
from forebay.core.limits import Limits, PreemptionMode
from forebay.core.policies import HostLeak, Intake, Rules, SwapSpan
from forebay.core.rooms import Rooms
from forebay.errors import InvariantError
from tests.unit.core.parts import arrive, limits, request, running


def with_rules(**more: Any) -> Limits:
    made = limits(num_host_blocks=8, prefix_caching=False)
    return replace(made, rules=Rules(**more))


@pytest.mark.parametrize(
    ("rule", "p", "m", "limit"),
    [
        (Intake.CLAMP, 6, 10, 12),
        (Intake.CLAMP, 6, 3, 9),
        (Intake.CLAMP, 40, 10, 41),  # longer than the pool and than max_model_len: admission's turn
        (Intake.TAKE_ALL, 6, 10, 16),
        (Intake.TAKE_ALL, 40, 10, 50),
    ],
)
def test_what_a_lenient_intake_takes(rule: Intake, p: int, m: int, limit: int) -> None:
    joined = judge(arrive(p=p, m=m), replace(with_rules(intake=rule), max_model_len=12))
    assert isinstance(joined, Join)
    assert joined.request.limit == limit
    assert joined.capped is None


def test_bad_shapes_are_refused_even_so_but_for_groups_without_seats() -> None:
    few = replace(with_rules(intake=Intake.TAKE_ALL), max_num_seqs=2)
    assert isinstance(judge(arrive(p=0), few), Refuse)
    assert isinstance(judge(arrive(num_branches=9), few), Refuse)
    assert isinstance(judge(arrive(num_branches=3), few), Join)
    clamped = replace(few, rules=Rules(intake=Intake.CLAMP))
    assert isinstance(judge(arrive(num_branches=3), clamped), Refuse)


@pytest.mark.parametrize(
    ("branches", "how"), [(1, Yield.RECOMPUTE), (2, Yield.SWAP), (3, Yield.SWAP)]
)
def test_groups_are_swapped_and_single_sequences_recomputed(branches: int, how: Yield) -> None:
    rooms = Rooms.build(replace(with_rules(), preemption_mode=PreemptionMode.GROUPS))
    req = running(rooms, request(p=6, num_branches=branches), computed=6, known=7)
    assert rooms.victims.how(req) is how
    assert not rooms.victims.lacks_host_room(req)


@pytest.mark.parametrize(("span", "num_slots"), [(SwapSpan.COMPUTED, 1), (SwapSpan.TABLE, 3)])
def test_how_much_of_a_half_computed_prompt_is_swapped(span: SwapSpan, num_slots: int) -> None:
    rooms = Rooms.build(with_rules(swap_span=span))
    req = running(rooms, request(p=12), computed=3)
    run, copies = rooms.kv.swap_out(req, None)
    assert len(copies) == len(run.slots) == num_slots


@pytest.mark.parametrize(
    ("leak", "reason", "num_free"),
    [
        (HostLeak.NONE, FinishReason.IGNORED, 8),
        (HostLeak.WHEN_IGNORED, FinishReason.ABORT, 8),
        (HostLeak.WHEN_IGNORED, FinishReason.IGNORED, 6),
    ],
)
def test_whose_host_blocks_are_lost(leak: HostLeak, reason: FinishReason, num_free: int) -> None:
    rooms = Rooms.build(with_rules(host_leak=leak))
    req = running(rooms, request(p=6), computed=6)
    run, _ = rooms.kv.swap_out(req, None)
    rooms.kv.drop_swapped(run, reason)
    assert rooms.kv.host.num_free == num_free
    assert rooms.kv.host.num_leaked == 8 - num_free
    assert rooms.kv.host.used == frozenset()
    with pytest.raises(InvariantError, match="freed twice"):
        rooms.kv.host.give_back(run)


def test_computing_what_was_known_at_admission_is_prefill() -> None:
    rooms = Rooms.build(with_rules())
    req = running(rooms, request(p=6), computed=5)
    assert req.is_prefilling
    req.live[0].computed = 6
    req.live[0].known = 7
    assert not req.is_prefilling
