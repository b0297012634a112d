"""Outputs that the pool itself ends, and requests without a seed: the same in every mode."""

from collections.abc import Sequence

import pytest

from forebay import LLM, SamplingParams
from forebay.llm import RequestOutput
from tests.exactness.mixed import PLENTY, Mixed, Opener
from tests.exactness.test_matrix import MODES, assert_pressure

_PROMPTS = [[number, 20, 30, 40, number] for number in range(6)]
_SMALL = 24  # blocks


_LONG = SamplingParams(temperature=0.9, seed=1, max_tokens=120, ignore_eos=True)
_GROUP = SamplingParams(temperature=0.9, seed=2, n=3, max_tokens=80, ignore_eos=True)


@pytest.fixture(scope="module")
def whole(open_tiny: Opener) -> dict[SamplingParams, list[list[int]]]:
    """What each prompt gives alone where there is room for all of it."""
    with open_tiny(num_gpu_blocks_override=PLENTY) as llm:
        return {
            params: _tokens([llm.generate(prompt, params)[0] for prompt in _PROMPTS])
            for params in (_LONG, _GROUP)
        }


@pytest.mark.parametrize("steps", [1, 2, 3])
@pytest.mark.parametrize("mode", MODES)
def test_outputs_as_long_as_the_pool(
    mode: str, steps: int, open_tiny: Opener, whole: dict[SamplingParams, list[list[int]]]
) -> None:
    """One sequence fills all 96 slots, and its last token needs none."""
    settings = {
        "num_gpu_blocks_override": _SMALL,
        "preemption_mode": mode,
        "steps_in_flight": steps,
    }
    with open_tiny(**settings) as llm:
        outputs = llm.generate(_PROMPTS, _LONG)
        assert_pressure(llm.stats().tally, mode)
    assert {output.outputs[0].finish_reason for output in outputs} == {"length"}
    _assert_beginnings(outputs, whole[_LONG], 97 - len(_PROMPTS[0]))


@pytest.mark.parametrize("steps", [1, 2, 3])
@pytest.mark.parametrize("mode", MODES)
def test_a_group_that_outgrows_the_pool_ends_where_the_pool_does(
    mode: str, steps: int, open_tiny: Opener, whole: dict[SamplingParams, list[list[int]]]
) -> None:
    """The prompt's full block is shared, and each branch has a third of the other 23."""
    settings = {
        "num_gpu_blocks_override": _SMALL,
        "preemption_mode": mode,
        "steps_in_flight": steps,
    }
    with open_tiny(**settings) as llm:
        outputs = llm.generate(_PROMPTS, _GROUP)
        assert_pressure(llm.stats().tally, mode)
    for output in outputs:
        assert {one.finish_reason for one in output.outputs} == {"kv_capacity"}
        assert "capped at 28 tokens" in (output.notice or "")
    _assert_beginnings(outputs, whole[_GROUP], 28)


@pytest.mark.parametrize("mode", MODES)
def test_without_a_seed_the_engines_own_decides(mode: str, mixed: Mixed, open_tiny: Opener) -> None:
    """The same requests in the same order: pressure changes nothing, another seed does."""
    pool = {"num_gpu_blocks_override": mixed.largest(), "preemption_mode": mode}
    with open_tiny(num_gpu_blocks_override=PLENTY, seed=8) as llm:
        free = _unseeded(llm)
    with open_tiny(**pool, seed=8) as llm:
        assert _tokens(_unseeded(llm)) == _tokens(free)
        assert_pressure(llm.stats().tally, mode)
    with open_tiny(**pool, seed=9) as llm:
        assert _tokens(_unseeded(llm)) != _tokens(free)


def _unseeded(llm: LLM) -> list[RequestOutput]:
    return llm.generate(_PROMPTS, SamplingParams(n=2, max_tokens=24, ignore_eos=True))


def _tokens(outputs: list[RequestOutput]) -> list[list[int]]:
    return [one.token_ids for output in outputs for one in output.outputs]


def _assert_beginnings(
    outputs: list[RequestOutput], whole: Sequence[list[int]], length: int
) -> None:
    assert _tokens(outputs) == [tokens[:length] for tokens in whole]
