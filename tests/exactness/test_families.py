"""Each family under pressure gives what `transformers` gives for each prompt alone."""

import random
from pathlib import Path
from typing import Any

import pytest
import torch

from forebay import SamplingParams
from tests.exactness.mixed import opener
from tests.exactness.reference import assert_same_greedy, greedy_tokens
from tests.exactness.test_matrix import assert_pressure
from tests.support.tiny_models import FAMILIES, hf_config, save_hf

_VOCAB_SIZE = 160
_NUM_OUTPUT = 40
# The longest end beyond the original 64 positions of the Llama 3.1 scaling.
_PROMPT_LENGTHS = (1, 7, 16, 24, 33, 48, 75, 90)


@pytest.mark.parametrize("mode", ["recompute", "swap"])
@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_under_pressure_equals_transformers(
    family: str, mode: str, tmp_path: Path, tiny_path: Path
) -> None:
    reference = _save(tmp_path, family)
    draw = random.Random(family)
    prompts = [[draw.randrange(_VOCAB_SIZE) for _ in range(size)] for size in _PROMPT_LENGTHS]
    settings = {
        "tokenizer": str(tiny_path),
        "num_gpu_blocks_override": 40,  # of 153 that all need
        "preemption_mode": mode,
        "steps_in_flight": 2,
    }
    params = SamplingParams(temperature=0, max_tokens=_NUM_OUTPUT, ignore_eos=True)
    with opener(tmp_path)(**settings) as llm:
        outputs = llm.generate(prompts, params)
        assert_pressure(llm.stats().tally, mode)
    ours = [output.outputs[0].token_ids for output in outputs]
    for prompt, mine in zip(prompts, ours, strict=True):
        [theirs] = greedy_tokens(reference, [prompt], _NUM_OUTPUT)
        assert_same_greedy(reference, prompt, mine, theirs)
    # Random weights must not make this easy.
    assert len({token for mine in ours for token in mine}) > 40


def _save(directory: Path, family: str) -> Any:
    reference = save_hf(directory, hf_config(family))
    if reference.config.tie_word_embeddings:
        # With large ones the likeliest token would always be the one just read.
        with torch.no_grad():
            reference.model.embed_tokens.weight.mul_(0.1)
        reference.save_pretrained(directory)
    return reference
