"""The embedded model under pressure gives what `transformers` gives with the same weights."""

from collections.abc import Sequence
from typing import Any

import pytest

from forebay import LLM, SamplingParams
from forebay.cli.demo import load_job
from forebay.config import EngineConfig
from forebay.startup import find_tokenizer
from tests.exactness.reference import assert_same_greedy, greedy_tokens

pytestmark = [pytest.mark.model, pytest.mark.slow]

_NUM_PROMPTS, _NUM_OUTPUT = 20, 64
_BLOCK_SIZE = 16


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    """Prompts of the demo, 34 to 239 tokens long."""
    return load_job(find_tokenizer(EngineConfig())).prompts[:_NUM_PROMPTS]


@pytest.fixture(scope="module")
def ours(prompts: list[list[int]]) -> list[list[int]]:
    return _greedy(prompts, preemption_mode="recompute", steps_in_flight=1)


@pytest.fixture(scope="module")
def reference() -> Any:
    from forebay.exec.threads import configure_threads
    from tests.support.smollm2 import transformers_smollm2

    configure_threads()
    return transformers_smollm2()


def _greedy(prompts: Sequence[list[int]], **settings: Any) -> list[list[int]]:
    """Outputs with a third of the blocks that all prompts need; preemption must have happened."""
    lengths = [len(prompt) + _NUM_OUTPUT for prompt in prompts]
    need = sum(-(-(length - 1) // _BLOCK_SIZE) for length in lengths)
    params = SamplingParams(temperature=0, max_tokens=_NUM_OUTPUT, ignore_eos=True)
    with LLM(
        num_gpu_blocks_override=need // 3,
        block_size=_BLOCK_SIZE,
        max_model_len=max(lengths),
        max_num_seqs=_NUM_PROMPTS,
        expected_output_share=0,
        **settings,
    ) as llm:
        outputs = llm.generate(list(prompts), params)
        tally = llm.stats().tally
    if settings["preemption_mode"] == "recompute":
        assert tally.preemptions_recompute > 3
    else:
        assert tally.preemptions_swap > 3
    return [output.outputs[0].token_ids for output in outputs]


def test_greedy_equals_transformers(
    prompts: list[list[int]], ours: list[list[int]], reference: Any
) -> None:
    theirs = greedy_tokens(reference, prompts, _NUM_OUTPUT)
    for prompt, mine, other in zip(prompts, ours, theirs, strict=True):
        assert len(mine) == _NUM_OUTPUT
        assert_same_greedy(reference, prompt, mine, other)


def test_swap_and_two_steps_in_flight_give_the_same(
    prompts: list[list[int]], ours: list[list[int]]
) -> None:
    assert _greedy(prompts, preemption_mode="swap", steps_in_flight=2) == ours
