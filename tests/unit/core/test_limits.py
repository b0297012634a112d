from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.core.effects import Refuse
from forebay.core.intake import judge
from forebay.core.limits import Limits
from tests.support.driver import Job, World
from tests.unit.core.parts import arrive, limits

SHAPES = {
    "num_blocks": st.integers(1, 40),
    "size": st.sampled_from([1, 2, 4, 16]),
    "prompt": st.integers(1, 200),
    "n": st.integers(1, 8),
}


@given(**SHAPES, length=st.integers(1, 300))
@settings(derandomize=True, max_examples=200, deadline=None)
def test_blocks_never_fall_with_length_and_the_longest_is_exactly_what_fits(
    num_blocks: int, size: int, prompt: int, n: int, length: int
) -> None:
    lim = Limits(num_blocks=num_blocks, block_size=size)
    need = lim.blocks_for_group(prompt, length, n)
    assert need <= lim.blocks_for_group(prompt, length + 1, n)
    longest = lim.longest_group(prompt, n)
    if longest:
        assert longest > prompt
        # the last sampled token needs no slot
        assert lim.blocks_for_group(prompt, longest - 1, n) <= num_blocks
        assert lim.blocks_for_group(prompt, longest, n) > num_blocks


@given(**SHAPES)
@settings(derandomize=True, max_examples=200, deadline=None)
def test_feasibility_falls_with_length_and_with_branches(
    num_blocks: int, size: int, prompt: int, n: int
) -> None:
    """N1: never refused at some length and accepted at a larger one."""
    lim = Limits(num_blocks=num_blocks, block_size=size, max_model_len=10_000)

    def is_taken(p: int, branches: int) -> bool:
        return not isinstance(judge(arrive(p=p, m=1, num_branches=branches), lim), Refuse)

    if not is_taken(prompt, n):
        assert not is_taken(prompt, n + 1)
        assert not is_taken(prompt + 1, n)


@given(num_blocks=st.integers(1, 12), size=st.sampled_from([1, 2, 4]), data=st.data())
@settings(derandomize=True, max_examples=60, deadline=None)
def test_what_is_accepted_is_served_alone_on_an_idle_engine(
    num_blocks: int, size: int, data: st.DataObject
) -> None:
    """B4, O1: one capacity function. The largest request that is taken runs to its end."""
    world = World(Limits(num_blocks=num_blocks, block_size=size, max_model_len=10_000))
    prompt = data.draw(st.integers(1, num_blocks * size))
    rid = world.submit(Job(tuple(range(prompt)), 10_000, n=data.draw(st.integers(1, 8))))
    world.run()
    assert not world.preempted
    if rid not in world.refused:
        assert world.scheduler.tally.peak_active_blocks <= num_blocks


def test_watermark_blocks_are_rounded_down() -> None:
    assert [limits(num_blocks=9, watermark=w).watermark_blocks for w in (0.0, 0.3, 0.99)] == [
        0,
        2,
        8,
    ]


def test_branches_share_full_prompt_blocks_only() -> None:
    lim = limits()
    assert lim.blocks_for_group(8, 12, 3) == 2 + 3
    assert lim.blocks_for_group(7, 12, 3) == 1 + 3 * 2
    assert lim.blocks_for_group(7, 7, 3) == lim.blocks_for_group(7, 7, 1) == 2
