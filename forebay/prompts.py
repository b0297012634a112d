"""What callers may hand in as a prompt, and how it becomes token ids.

A prompt is a text, a list of token ids, or a dict with `prompt` or `prompt_token_ids`, as in vLLM.
"""

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from forebay.errors import BadRequest

if TYPE_CHECKING:
    from forebay.text import TextTokenizer

Prompt: TypeAlias = str | Sequence[int] | Mapping[str, object]
"""One prompt."""
Messages: TypeAlias = Sequence[Mapping[str, object]]
"""One conversation: dicts with `role` and `content`."""


@dataclass(slots=True, frozen=True)
class TokenPrompt:
    """A prompt as token ids, with its text if it came as text."""

    text: str | None
    token_ids: list[int]


def split_prompts(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """The single prompts in what was passed: one prompt, or a sequence of them."""
    if isinstance(prompts, str | Mapping):
        return [prompts]
    if not isinstance(prompts, Sequence) or isinstance(prompts, bytes):
        raise BadRequest(
            f"prompts is a {type(prompts).__name__}; it must be a string, a dict with prompt or "
            "prompt_token_ids, or a list of these"
        )
    if prompts and all(_is_id(item) for item in prompts):
        return [prompts]  # type: ignore[list-item]  # a list of ids is one prompt
    return list(prompts)  # type: ignore[arg-type]  # each is checked by token_prompts


def split_chats(messages: Any) -> list[Messages]:  # Any: whatever a caller has passed
    """The single conversations in what was passed: one, or a sequence of them."""
    if not isinstance(messages, Sequence) or isinstance(messages, str | bytes):
        raise BadRequest(
            f"messages is a {type(messages).__name__}; it must be a list of dicts with role and "
            "content, or a list of such lists"
        )
    if messages and isinstance(messages[0], Mapping):
        return [messages]
    return list(messages)


def token_prompts(prompts: Sequence[Prompt], tokenizer: "TextTokenizer") -> list[TokenPrompt]:
    """Tokenises each prompt. Raises `BadRequest` that names the first one of a wrong shape."""
    parsed = [_parse(prompt, index, len(prompts)) for index, prompt in enumerate(prompts)]
    texts = [prompt for prompt in parsed if isinstance(prompt, str)]
    encoded = iter(tokenizer.encode_batch(texts) if texts else ())
    return [
        TokenPrompt(prompt, next(encoded)) if isinstance(prompt, str) else prompt
        for prompt in parsed
    ]


def chat_prompt(messages: Messages, tokenizer: "TextTokenizer", **options: object) -> TokenPrompt:
    """A conversation through the model's chat template; `options` are those of the template."""
    text = tokenizer.apply_chat_template(messages, **options)  # type: ignore[arg-type]  # checked there
    return TokenPrompt(text, tokenizer.encode(text, add_special_tokens=False))


def _parse(prompt: object, index: int, num_prompts: int) -> str | TokenPrompt:
    where = f"prompts[{index}]" if num_prompts > 1 else "the prompt"
    if isinstance(prompt, Mapping):
        ids, text = prompt.get("prompt_token_ids"), prompt.get("prompt")
        if (ids is None) == (text is None) and not isinstance(text, str):
            raise BadRequest(f"{where} is a dict without prompt or prompt_token_ids: give one")
        if ids is not None:
            return TokenPrompt(text if isinstance(text, str) else None, _ids(ids, where))
        prompt = text
    if isinstance(prompt, str):
        if not prompt:
            raise BadRequest(f"{where} is empty: at least one token is needed")
        return prompt
    return TokenPrompt(None, _ids(prompt, where))


def _ids(ids: object, where: str) -> list[int]:
    if not isinstance(ids, Sequence) or isinstance(ids, str | bytes):
        raise BadRequest(
            f"{where} is a {type(ids).__name__}; it must be a string, a list of token ids, or a "
            "dict with prompt or prompt_token_ids"
        )
    if not ids:
        raise BadRequest(f"{where} is empty: at least one token is needed")
    for token in ids:
        if not _is_id(token):
            raise BadRequest(f"{where} holds {token!r}, which is no token id")
    return [operator.index(token) for token in ids]


def _is_id(item: object) -> bool:
    """Any kind of integer, such as numpy's."""
    return hasattr(item, "__index__") and not isinstance(item, bool)
