"""Chat templates: a list of messages becomes a prompt, in a sandbox.

The environment is the one of transformers 5.24 (`utils/chat_template_utils.py`): immutable
sandbox, `trim_blocks`, `lstrip_blocks`, loop controls, `raise_exception`, `strftime_now`, a
`tojson` that escapes nothing, a bare `dict`, guarded namespaces, the `generation` tag. On top of
it, work that would only burn memory is refused: huge ranges, powers, repetitions and outputs.
A template can still be slow within these bounds; take templates from model files you trust.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from forebay.errors import BadRequest, ModelError

if TYPE_CHECKING:
    from jinja2 import Template
    from jinja2.sandbox import ImmutableSandboxedEnvironment

MAX_PROMPT_CHARS = 1 << 26
MAX_LOOP_TURNS = 1_000_000  # over all ranges of one rendering

Now = Callable[[], datetime]


class ChatTemplate:
    """One template, compiled. Raises ModelError when the source is no valid template."""

    def __init__(self, source: str, *, now: Now = datetime.now) -> None:
        self.source = source
        self._now = now
        self._template = _compile(source)

    def render(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, object]] | None = None,
        variables: Mapping[str, object] | None = None,
    ) -> str:
        """The prompt for `messages`; `variables` are names the template may use (`bos_token`).

        Raises BadRequest for malformed messages and for a chat that the template rejects, and
        ModelError when the template tries what the sandbox forbids.
        """
        values: dict[str, object] = {
            "documents": None,
            **{name: _plain(value, name) for name, value in (variables or {}).items()},
            "messages": check_messages(messages),
            "tools": None if tools is None else _plain(list(tools), "tools"),
            "add_generation_prompt": add_generation_prompt,
            "range": _CountedRange(),
            "strftime_now": lambda layout: self._now().strftime(layout),
        }
        return self._render(values)

    def _render(self, values: Mapping[str, object]) -> str:
        from jinja2.exceptions import SecurityError, TemplateError

        pieces: list[str] = []
        size = 0
        try:
            for piece in self._template.generate(values):
                pieces.append(piece)
                size += len(piece)
                if size > MAX_PROMPT_CHARS:
                    raise BadRequest(f"the chat template wrote over {MAX_PROMPT_CHARS} characters")
        except SecurityError as error:
            raise ModelError(f"the chat template does what is forbidden: {error}") from error
        except TemplateError as error:
            raise BadRequest(f"the chat template rejects these messages: {error}") from error
        except (BadRequest, MemoryError):
            raise
        except Exception as error:  # a template can raise whatever Python's operators raise
            raise BadRequest(
                f"the chat template fails on these messages: {type(error).__name__}: {error}"
            ) from error
        return "".join(pieces)


def check_messages(messages: object) -> list[dict[str, object]]:
    """The messages as plain data, without keys that are None, texts in parts joined by newlines.

    Raises BadRequest, naming the message, when a role or content is missing or of a wrong type.
    """
    if not isinstance(messages, Sequence) or isinstance(messages, str | bytes):
        raise BadRequest(f"messages should be a list, not {type(messages).__name__}")
    if not messages:
        raise BadRequest("messages is empty: give at least one message")
    return [_check_message(message, index) for index, message in enumerate(messages)]


def _check_message(message: object, index: int) -> dict[str, object]:
    where = f"messages[{index}]"
    if not isinstance(message, Mapping):
        raise BadRequest(f"{where} should be an object, not {type(message).__name__}")
    fields = {key: value for key, value in message.items() if value is not None}
    role = fields.get("role")
    if not isinstance(role, str) or not role:
        raise BadRequest(f"{where} needs a role: a string such as 'user'")
    if "content" in fields:
        fields["content"] = _content(fields["content"], where)
    elif "tool_calls" not in fields:
        raise BadRequest(f"{where} needs content: a string, or a list of text parts")
    plain = _plain(fields, where)
    assert isinstance(plain, dict)
    return plain


def _content(content: object, where: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        kind = type(content).__name__
        raise BadRequest(f"{where}.content should be a string or a list of parts, not {kind}")
    texts = []
    for part in content:
        text = part.get("text") if isinstance(part, Mapping) else None
        if not isinstance(text, str) or part.get("type", "text") != "text":
            raise BadRequest(
                f"{where}.content: every part should be {{'type': 'text', 'text': ...}}"
            )
        texts.append(text)
    return "\n".join(texts)


def _plain(value: object, where: str) -> object:
    """A copy built of JSON types alone, so that a template is handed no object with methods."""
    if value is None or isinstance(value, bool):
        return value
    for kind in (str, int, float):
        if isinstance(value, kind):
            return kind(value)
    if isinstance(value, Mapping):
        return {_key(key, where): _plain(item, where) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, where) for item in value]
    raise BadRequest(f"{where} holds a {type(value).__name__}, which is not JSON data")


def _key(key: object, where: str) -> str:
    if not isinstance(key, str):
        raise BadRequest(f"{where} has a key that is not a string: {key!r}")
    return str(key)


class _CountedRange:
    """`range`, with a bound on the numbers that all ranges of one rendering yield together."""

    def __init__(self) -> None:
        self._left = MAX_LOOP_TURNS

    def __call__(self, *args: int) -> range:
        numbers = range(*args)
        # Compared by bounds: len() of a huge range overflows.
        if len(numbers[: self._left + 1]) > self._left:
            raise OverflowError(f"its loops take more than {MAX_LOOP_TURNS} turns")
        self._left -= len(numbers)
        return numbers


@lru_cache(maxsize=64)
def _compile(source: str) -> "Template":
    from jinja2.exceptions import TemplateError

    try:
        return _environment().from_string(source)
    except (TemplateError, RecursionError, SyntaxError) as error:
        raise ModelError(f"the chat template cannot be compiled: {error}") from error


@lru_cache(maxsize=1)
def _environment() -> "ImmutableSandboxedEnvironment":
    from forebay.text.template_sandbox import ChatEnvironment

    environment = ChatEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = _to_json
    return environment


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # jinja's own filter escapes HTML, which would put &lt; and \u0027 before the model.
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )
