"""Greedy outputs of `transformers`, and what a difference from them comes from.

Two correct programs may disagree where the two best logits lie so close together that the order of
a sum decides. Such a place is accepted, and shown; any other difference fails.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

MAX_LOGIT_DIFFERENCE = 1e-4


@dataclass(frozen=True, slots=True)
class Choice:
    """A place where our token is not the one that `transformers` takes or likes best."""

    at: int
    ours: int
    theirs: int
    gap: float
    """How far the two logits lie apart in the eyes of `transformers`."""
    are_two_best: bool

    @property
    def is_tie(self) -> bool:
        return self.are_two_best and self.gap <= MAX_LOGIT_DIFFERENCE

    def __str__(self) -> str:
        which = "the two best logits" if self.are_two_best else "not the two best logits"
        return (
            f"  output token {self.at}: {self.ours} instead of {self.theirs}; {which}, "
            f"{self.gap:.2e} apart"
        )


def greedy_tokens(model: Any, prompts: Sequence[Sequence[int]], num_tokens: int) -> list[list[int]]:
    """What `generate` of transformers gives for these prompts, running past its end tokens."""
    longest = max(len(prompt) for prompt in prompts)
    ids = torch.tensor([[0] * (longest - len(prompt)) + list(prompt) for prompt in prompts])
    mask = torch.tensor([[0] * (longest - len(one)) + [1] * len(one) for one in prompts])
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # about generation settings that play no part here
        out = model.generate(
            ids,
            attention_mask=mask,
            do_sample=False,
            max_new_tokens=num_tokens,
            eos_token_id=None,
            pad_token_id=0,
        )
    tokens: list[list[int]] = out[:, longest:].tolist()
    return tokens


def assert_same_greedy(
    model: Any, prompt: Sequence[int], ours: Sequence[int], theirs: Sequence[int]
) -> list[Choice]:
    """Fails unless the outputs are equal but for ties, which it prints and answers.

    From the first tie on the two go different ways, so what follows is judged by what
    `transformers` would say after our tokens.
    """
    if list(ours) == list(theirs):
        return []
    first = next(at for at, (a, b) in enumerate(zip(ours, theirs, strict=True)) if a != b)
    ids = torch.tensor([[*prompt, *ours]])
    with torch.no_grad():
        logits = model(ids).logits[0, len(prompt) - 1 : -1]
    choices = [_choice(logits[first], first, ours[first], theirs[first])]
    for at in range(first + 1, len(ours)):
        best = int(logits[at].argmax())
        if ours[at] != best:
            choices.append(_choice(logits[at], at, ours[at], best))
    told = "differs from transformers:\n" + "\n".join(str(choice) for choice in choices)
    print(told)
    assert all(choice.is_tie for choice in choices), told
    return choices


def _choice(row: torch.Tensor, at: int, ours: int, theirs: int) -> Choice:
    return Choice(
        at=at,
        ours=ours,
        theirs=theirs,
        gap=float((row[ours] - row[theirs]).abs()),
        are_two_best=set(row.topk(2).indices.tolist()) == {ours, theirs},
    )
