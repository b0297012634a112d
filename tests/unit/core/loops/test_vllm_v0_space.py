import pytest

from forebay.core.blocks import Hold
from forebay.core.kv import KvSpace
from forebay.core.limits import Limits
from forebay.core.loops.vllm_v0_space import Alloc, DelayGate, Space
from forebay.core.policies import PromptDelay
from forebay.core.presets import vllm_v0
from forebay.core.request import add_branches
from forebay.core.swap import HostRun
from forebay.units import HostSlot, Nanos, SeqId
from tests.unit.core.parts import request


def space(watermark: float, held: int) -> Space:
    """A pool of ten blocks, `held` of them taken."""
    limits = vllm_v0(Limits(num_blocks=10, block_size=4, watermark=watermark))
    kv = KvSpace(limits)
    kv.pool.take(Hold(), held)
    return Space(limits, kv)


@pytest.mark.parametrize(
    ("watermark", "held", "cost", "answer"),
    [
        (0.0, 0, 10, Alloc.OK),
        (0.0, 0, 11, Alloc.NEVER),
        (0.0, 1, 10, Alloc.LATER),
        (0.09, 0, 10, Alloc.OK),  # rounded down to no block
        (0.29, 0, 8, Alloc.OK),  # two blocks are kept free
        (0.29, 0, 9, Alloc.NEVER),
        (0.29, 3, 5, Alloc.OK),
        (0.29, 3, 6, Alloc.LATER),
        (0.29, 3, 9, Alloc.NEVER),
    ],
)
def test_a_prompt_leaves_the_watermark(
    watermark: float, held: int, cost: int, answer: Alloc
) -> None:
    assert space(watermark, held).can_allocate(cost) is answer


@pytest.mark.parametrize(
    ("watermark", "held", "num_slots", "branches", "answer"),
    [
        (0.0, 0, 9, 1, Alloc.OK),  # one block more for the sequence
        (0.0, 0, 10, 1, Alloc.NEVER),
        (0.0, 1, 9, 1, Alloc.LATER),
        (0.0, 0, 9, 2, Alloc.NEVER),
        (0.2, 0, 7, 1, Alloc.OK),
        (0.2, 0, 8, 1, Alloc.LATER),  # for ever: the reference leaves the watermark out of NEVER
    ],
)
def test_a_swapped_group_wants_its_blocks_and_one_for_each_sequence(
    watermark: float, held: int, num_slots: int, branches: int, answer: Alloc
) -> None:
    req = request(num_branches=branches)
    if branches > 1:
        add_branches(req)
    slots = tuple(HostSlot(slot) for slot in range(num_slots))
    run = HostRun({SeqId(seq.id): slots for seq in req.live}, slots)
    assert space(watermark, held).can_swap_in(req, run) is answer


def test_a_running_group_wants_a_free_block_even_if_none_will_be_used() -> None:
    req = request(p=6)
    assert space(0.0, held=9).can_append(req)
    assert not space(0.0, held=10).can_append(req)


def gate(factor: float, last_check: int, first_prompts: int) -> DelayGate:
    """Admitted prompts at step `first_prompts`; checked since at `last_check`. Steps of 0.05 s."""
    made = DelayGate(PromptDelay(factor=factor, unit_s=0.05))
    running = [request(8)]
    made.is_open(Nanos(first_prompts), [], running)
    made.note_admitted()
    made.is_open(Nanos(last_check), [], running)
    return made


@pytest.mark.parametrize(
    ("now", "arrival", "is_open"),
    [
        (2, 0, False),  # 0.1 > 0.1
        (3, 1, True),  # 0.15000000000000002 - 0.05 > 0.1: an exact tie that rounding opens
        (4, 2, False),  # 0.2 - 0.1 > 0.1
        (7, 5, True),  # 0.35000000000000003 - 0.25 > 0.1
        (8, 6, False),  # 0.4 - 0.30000000000000004 > 0.1
        (8, 5, True),
    ],
)
def test_ties_fall_as_floating_point_seconds_do(now: int, arrival: int, is_open: bool) -> None:
    # the last prompt step took steps 0 to 2: 0.1 s
    waiting = [request(arrival)]
    got = gate(1.0, last_check=2, first_prompts=0).is_open(Nanos(now), waiting, [request(9)])
    assert got is is_open


def test_with_nothing_running_or_nobody_waiting_it_is_open() -> None:
    made = gate(100.0, last_check=2, first_prompts=0)
    assert not made.is_open(Nanos(3), [request(1)], [request(9)])
    assert made.is_open(Nanos(3), [request(1)], [])
    assert made.is_open(Nanos(3), [], [request(9)])


def test_the_oldest_of_all_that_wait_counts() -> None:
    made = gate(2.0, last_check=4, first_prompts=2)  # 0.2 s
    assert not made.is_open(Nanos(7), [request(5), request(4)], [request(9)])
    assert made.is_open(Nanos(7), [request(5), request(1)], [request(9)])


def test_without_a_delay_it_is_open() -> None:
    assert DelayGate(None).is_open(Nanos(0), [request(0)], [request(9)])
