"""A mixed workload for the tiny model, and what makes two of its outputs equal."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from forebay import LLM, SamplingParams
from forebay.core.limits import Limits
from forebay.llm import CompletionOutput, Logprob, RequestOutput

MAX_LOGPROB_DIFFERENCE = 1e-4
_ORDINARY = 256  # token ids of the byte tokenizer below this are single bytes


@dataclass(frozen=True, slots=True)
class Request:
    """One request. Its name says what it is there for."""

    name: str
    prompt: list[int]
    params: SamplingParams

    def num_blocks(self, block_size: int) -> int:
        """Blocks that it holds at its longest; its last token needs no slot."""
        length = len(self.prompt) + (self.params.max_tokens or 1) - 1
        limits = Limits(num_blocks=1, block_size=block_size)
        return limits.blocks_for_group(len(self.prompt), length, self.params.n)

    @property
    def longest(self) -> int:
        return len(self.prompt) + (self.params.max_tokens or 1)


def mixed_workload(llm: LLM) -> list[Request]:
    """Sixteen requests that use all of `SamplingParams`, some with equal beginnings of prompts.

    `llm` is asked for stop strings and stop tokens that will really come up.
    """
    draw = random.Random(11)
    first, second = _prompt(draw, 24), _prompt(draw, 16)
    return [
        _greedy("greedy", _prompt(draw, 70), 32, logprobs=3),
        _greedy("greedy_shared", first + _prompt(draw, 5), 30),
        _greedy("greedy_same_prompt", first, 26, n=2, logprobs=0),
        _greedy("greedy_penalised", _prompt(draw, 9), 34, repetition_penalty=1.4),
        _greedy("one_token", _prompt(draw, 50), 1, logprobs=3),
        _seeded("temperature", _prompt(draw, 1), 38, temperature=0.8),
        _seeded("top_p", second + _prompt(draw, 3), 30, temperature=1.2, top_p=0.9),
        _seeded("top_k", first, 28, top_k=20, logprobs=3),
        _seeded("min_p_group", second, 24, min_p=0.05, n=3),
        _seeded("filters", second + _prompt(draw, 20), 20, top_k=40, top_p=0.8, min_p=0.01),
        _seeded(
            "penalised",
            _prompt(draw, 13),
            36,
            presence_penalty=0.5,
            frequency_penalty=0.3,
            repetition_penalty=1.2,
            logprobs=3,
        ),
        *_stopping(llm, draw, first),
    ]


def _stopping(llm: LLM, draw: random.Random, shared: list[int]) -> list[Request]:
    """Requests that end before `max_tokens`, each in its own way."""
    prompts = [shared + _prompt(draw, 8), _prompt(draw, 18), _prompt(draw, 30), _prompt(draw, 6)]
    free = [SamplingParams(temperature=0, max_tokens=34, ignore_eos=True)] * 3
    group = SamplingParams(temperature=1.0, seed=5, n=3, max_tokens=30, ignore_eos=True)
    a_string, a_token, a_late_one, a_group = llm.generate(list(prompts), [*free, group])
    early = a_late_one.outputs[0].token_ids[6]
    end_seed = _seed_that_ends(llm, prompts[3])
    return [
        _greedy("stop_string", prompts[0], 34, stop=[_late_piece(a_string.outputs[0].text)]),
        _greedy("stop_token", prompts[1], 34, stop_token_ids=[a_token.outputs[0].token_ids[20]]),
        _greedy("min_tokens", prompts[2], 34, stop_token_ids=[early], min_tokens=12),
        _seeded("own_end", prompts[3], 40, seed=end_seed, ignore_eos=False),
        _seeded(
            "stopping_group",
            prompts[3],
            30,
            seed=5,
            n=3,
            logprobs=2,
            stop=[_late_piece(a_group.outputs[1].text)],
            include_stop_str_in_output=True,
            stop_token_ids=[a_group.outputs[2].token_ids[14]],
        ),
    ]


def _greedy(name: str, prompt: list[int], max_tokens: int, **params: Any) -> Request:
    settings = {"temperature": 0.0, "max_tokens": max_tokens, "ignore_eos": True, **params}
    return Request(name, prompt, SamplingParams(**settings))


def _seeded(name: str, prompt: list[int], max_tokens: int, **params: Any) -> Request:
    settings = {"temperature": 1.0, "seed": 1000 + len(name), "ignore_eos": True, **params}
    return Request(name, prompt, SamplingParams(max_tokens=max_tokens, **settings))


def _prompt(draw: random.Random, length: int) -> list[int]:
    return [draw.randrange(_ORDINARY) for _ in range(length)]


def _late_piece(text: str) -> str:
    """Two characters, or one, that come up in the later part of `text` and not before."""
    start = len(text) // 3
    pieces = [text[at : at + size] for size in (2, 1) for at in range(start, len(text) - 1)]
    return next(one for one in pieces if text.index(one) >= start and "\ufffd" not in one)


def _seed_that_ends(llm: LLM, prompt: list[int]) -> int:
    """A seed with which the model ends by its own token, after a while."""
    params = [SamplingParams(seed=seed, max_tokens=40) for seed in range(80)]
    outputs = llm.generate([prompt] * len(params), params)
    return next(
        seed
        for seed, output in enumerate(outputs)
        if output.outputs[0].finish_reason == "stop" and len(output.outputs[0].token_ids) > 8
    )


def alone(llm: LLM, requests: Sequence[Request]) -> list[RequestOutput]:
    """Each request by itself, one after another."""
    return [llm.generate(request.prompt, request.params)[0] for request in requests]


def together(
    llm: LLM, requests: Sequence[Request], priority: Sequence[int] | None = None
) -> list[RequestOutput]:
    """All requests at once."""
    prompts = [request.prompt for request in requests]
    return llm.generate(prompts, [one.params for one in requests], priority=priority)


def differences(
    requests: Sequence[Request],
    found: Sequence[RequestOutput],
    expected: Sequence[RequestOutput],
) -> list[str]:
    """What a caller could notice to be different, one line each."""
    lines = []
    for request, one, other in zip(requests, found, expected, strict=True):
        for mine, theirs in zip(one.outputs, other.outputs, strict=True):
            line = _difference(mine, theirs)
            if line:
                went = f"preempted {one.metrics.num_preemptions}x, {one.metrics.num_swaps} swaps"
                lines.append(f"{request.name}[{mine.index}] ({went}): {line}")
    return lines


def _difference(found: CompletionOutput, expected: CompletionOutput) -> str:
    for what in ("token_ids", "finish_reason", "stop_reason", "text"):
        mine, theirs = getattr(found, what), getattr(expected, what)
        if mine != theirs:
            return f"{what} is {mine!r}, not {theirs!r}"
    if (found.logprobs is None) != (expected.logprobs is None):
        return f"logprobs are {found.logprobs}, not {expected.logprobs}"
    places = zip(found.logprobs or (), expected.logprobs or (), strict=True)
    for place, (mine, theirs) in enumerate(places):
        if not _are_close(mine, theirs):
            return f"logprobs of token {place} are {mine}, not {theirs}"
    total, wanted = found.cumulative_logprob or 0.0, expected.cumulative_logprob or 0.0
    if abs(total - wanted) > MAX_LOGPROB_DIFFERENCE * max(1, len(found.token_ids)):
        return f"cumulative_logprob is {total}, not {wanted}"
    return ""


def _are_close(mine: dict[int, Logprob], theirs: dict[int, Logprob]) -> bool:
    return list(mine) == list(theirs) and all(
        abs(at.logprob - theirs[token].logprob) <= MAX_LOGPROB_DIFFERENCE
        and (at.rank, at.decoded_token) == (theirs[token].rank, theirs[token].decoded_token)
        for token, at in mine.items()
    )


def largest_logprob_difference(
    found: Sequence[RequestOutput], expected: Sequence[RequestOutput]
) -> float:
    """Over all reported tokens of outputs that are equal by `differences`."""
    pairs = [
        (at.logprob, theirs[token].logprob)
        for one, other in zip(found, expected, strict=True)
        for a, b in zip(one.outputs, other.outputs, strict=True)
        for mine, theirs in zip(a.logprobs or (), b.logprobs or (), strict=True)
        for token, at in mine.items()
    ]
    return max(abs(mine - theirs) for mine, theirs in pairs)
