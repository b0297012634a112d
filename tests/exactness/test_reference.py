"""The comparison with transformers accepts a tie and nothing else."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.exactness.reference import assert_same_greedy

_PROMPT = [0]


def test_a_difference_after_a_tie_is_judged_by_what_follows_ours() -> None:
    model = _model([0, 5, 5.00005], [0, 9, 9.00002], [0, 0, 0])
    assert [tie.at for tie in assert_same_greedy(model, _PROMPT, [1, 1], [2, 0])] == [0, 1]


def _model(*rows: list[float]) -> Any:
    """Logits by position, whatever the tokens."""
    return lambda ids: SimpleNamespace(logits=torch.tensor(rows)[None, : ids.shape[1]])


def test_equal_outputs_need_no_excuse() -> None:
    assert assert_same_greedy(None, _PROMPT, [1, 2], [1, 2]) == []


def test_a_tie_is_accepted_and_told(capsys: pytest.CaptureFixture[str]) -> None:
    model = _model([0, 5, 5.00005], [0, 9, 1], [0, 0, 0])
    [tie] = assert_same_greedy(model, _PROMPT, [1, 1], [2, 0])
    assert (tie.at, tie.ours, tie.theirs) == (0, 1, 2)
    assert "output token 0: 1 instead of 2" in capsys.readouterr().out


@pytest.mark.parametrize(
    "model",
    [
        _model([0, 5, 5.001], [0, 9, 1], [0, 0, 0]),  # not close
        _model([5.00004, 5, 5.00005], [0, 9, 1], [0, 0, 0]),  # close, but the third best
        _model([0, 5, 5.00005], [0, 1, 9], [0, 0, 0]),  # a tie, then a mistake
        _model([0, 5, 4], [0, 9, 8], [0, 0, 0]),  # no tie anywhere
    ],
)
def test_anything_else_is_not(model: Any) -> None:
    with pytest.raises(AssertionError, match="differs from transformers"):
        assert_same_greedy(model, _PROMPT, [1, 1], [2, 0])
