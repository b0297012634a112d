"""Chat templates: the same prompts as transformers, clear refusals, and a sandbox that holds."""

from datetime import datetime
from typing import Any

import pytest

from forebay.errors import BadRequest, ForebayError, ModelError
from forebay.text import ChatTemplate, TextTokenizer
from tests.unit.text.conftest import CHATML

LLAMA3 = """{%- set loop_messages = messages %}
{%- for message in loop_messages %}
    {%- set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' %}
    {%- set content = content + message['content'] | trim + '<|eot_id|>' %}
    {%- if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}
    {{- content }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""
MISTRAL = """{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content'] %}
    {%- set rest = messages[1:] %}
{%- else %}
    {%- set rest = messages %}
{%- endif %}
{{- bos_token }}
{%- for message in rest %}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('Roles must alternate user/assistant/user/assistant/...') }}
    {%- endif %}
    {%- if message['role'] == 'user' %}
        {%- if loop.first and system_message is defined %}
            {{- ' [INST] ' + system_message + '\\n\\n' + message['content'] + ' [/INST]' }}
        {%- else %}
            {{- ' [INST] ' + message['content'] + ' [/INST]' }}
        {%- endif %}
    {%- else %}
        {{- ' ' + message['content'] + eos_token}}
    {%- endif %}
{%- endfor %}
"""
TOOLS = """{%- set ns = namespace(count=0, found=false) %}
{% for tool in tools or [] %}
    {% if tool.name == 'skip' %}{% continue %}{% endif %}
    {%- set ns.count = ns.count + 1 %}
# {{ ns.count }} {{ tool | tojson }} {{ tool.args | default({}) | tojson(indent=2) }}
{% endfor %}
{% generation %}
{{- messages[-1].content | upper | replace("<", "&") }}
{% endgeneration %}
{{ dict(a=1, **{'b': 2}).items() | list }} {{ strftime_now('%Y') }}
   {# a comment #}
{% for i in range(9) %}{% if i > 2 %}{% break %}{% endif %}{{ i }}{% endfor %}
{{ documents is none }} {{ extra | length }} {{ messages | tojson(sort_keys=true) }}
{% if undefined_name %}never{% endif %}{{ undefined_name }}
"""
USER = {"role": "user", "content": "  Wie geht's? 你好 <b>\n"}
CHATS: list[list[dict[str, Any]]] = [
    [USER],
    [{"role": "system", "content": "Be 'brief'."}, USER],
    [USER, {"role": "assistant", "content": "Gut.", "name": None}, {**USER, "extra": [1, None]}],
]


@pytest.fixture(scope="module")
def by_transformers(bpe: TextTokenizer) -> Any:
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(
        tokenizer_object=bpe.backend, bos_token="<|start|>", eos_token="<|end|>"
    )


@pytest.mark.parametrize("source", [CHATML, LLAMA3, MISTRAL, TOOLS])
@pytest.mark.parametrize("chat", CHATS)
@pytest.mark.parametrize("generate", [True, False])
def test_prompts_equal_transformers(
    by_transformers: Any, source: str, chat: list[dict[str, Any]], generate: bool
) -> None:
    tools = [{"name": "f", "args": {"x": "é<>&'"}}, {"name": "skip"}, {"name": "g"}]
    theirs = by_transformers.apply_chat_template(
        chat,
        chat_template=source,
        tools=tools,
        tokenize=False,
        add_generation_prompt=generate,
        extra="abc",
    )
    ours = ChatTemplate(source).render(
        chat,
        tools=tools,
        add_generation_prompt=generate,
        variables={"bos_token": "<|start|>", "eos_token": "<|end|>", "extra": "abc"},
    )
    assert ours == theirs
    assert len(ours) > 20


def test_a_template_that_rejects_the_chat_says_why() -> None:
    template = ChatTemplate(MISTRAL)
    with pytest.raises(BadRequest, match="Roles must alternate"):
        template.render([USER, USER], variables={"bos_token": "<s>"})


def test_time_is_handed_in() -> None:
    template = ChatTemplate("{{ strftime_now('%d %b %Y') }}", now=lambda: datetime(2024, 7, 26))
    assert template.render([USER]) == "26 Jul 2024"


def test_text_parts_are_joined_and_nones_dropped() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}, {"text": "c"}]
    template = ChatTemplate("{{ messages[0].content }}|{{ 'name' in messages[0] }}")
    assert template.render([{"role": "user", "content": parts, "name": None}]) == "a\nb\nc|False"


def test_an_answer_with_tool_calls_needs_no_content() -> None:
    call = {"role": "assistant", "content": None, "tool_calls": [{"name": "f"}]}
    template = ChatTemplate("{{ messages[0].tool_calls[0].name }}")
    assert template.render([call]) == "f"


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([], "messages is empty"),
        ("hello", "messages should be a list, not str"),
        (None, "messages should be a list, not NoneType"),
        ({"role": "user"}, "messages should be a list, not dict"),
        (["hi"], r"messages\[0\] should be an object, not str"),
        ([USER, {"content": "x"}], r"messages\[1\] needs a role"),
        ([{"role": 3, "content": "x"}], r"messages\[0\] needs a role"),
        ([{"role": "", "content": "x"}], r"messages\[0\] needs a role"),
        ([{"role": "user"}], r"messages\[0\] needs content"),
        ([{"role": "user", "content": None}], r"messages\[0\] needs content"),
        (
            [{"role": "user", "content": 5}],
            r"content should be a string or a list of parts, not int",
        ),
        ([{"role": "user", "content": ["x"]}], "every part should be"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "every part should be"),
        ([{"role": "user", "content": "x", "y": object()}], "holds a object, which is not JSON"),
        ([{"role": "user", "content": "x", 7: 1}], "a key that is not a string: 7"),
    ],
)
def test_malformed_messages_are_refused_by_place(messages: Any, message: str) -> None:
    with pytest.raises(BadRequest, match=message):
        ChatTemplate(CHATML).render(messages)


def test_a_template_without_sense_for_these_messages_is_the_callers_turn() -> None:
    for source in ("{{ messages[0].content + 1 }}", "{{ messages[5].role }}", "{{ 1 // 0 }}"):
        with pytest.raises(BadRequest, match="chat template"):
            ChatTemplate(source).render([USER])


@pytest.mark.parametrize("source", ["{% for %}", "{{ x", "{% endif %}", "{% generation %}"])
def test_a_template_that_is_none_is_the_models_fault(source: str) -> None:
    with pytest.raises(ModelError, match="cannot be compiled"):
        ChatTemplate(source)


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.__init__.__globals__ }}",
        "{{ (messages | attr('__class__')).__mro__ }}",
        "{{ raise_exception.__globals__['__builtins__'] }}",
        "{{ strftime_now.__globals__.os }}",
        "{{ range.__call__.__globals__ }}",
        "{{ dict.__class__.__base__ }}",
        "{{ dict.mro() }}",
        "{{ namespace.__init__.__globals__ }}",
        "{{ '{0.__class__.__mro__}'.format(messages) }}",
        "{{ '{m.__class__.__mro__}'.format_map({'m': messages}) }}",
        "{{ cycler.__init__.__globals__.os.system('true') }}",
        "{% set ns = namespace(__class__=1) %}",
        "{% set ns = namespace() %}{% set ns.__class__ = 1 %}",
        "{{ messages.append(messages[0]) }}",
        "{{ messages[0].update({'content': 'x'}) }}",
        "{% include '/etc/passwd' %}",
        "{% for i in range(10 ** 12) %}{% endfor %}",
        "{% for i in range(99999999999999999999) %}{% endfor %}",
        "{% for i in range(999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{{ 'x' * (10 ** 9) }}",
        "{{ (10 ** 9) * [0] }}",
        "{{ 9 ** (9 ** 9) }}",
        "{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}",
    ],
)
def test_hostile_templates_are_stopped(source: str) -> None:
    before = [dict(USER)]
    with pytest.raises(ForebayError):
        ChatTemplate(source).render(before)
    assert before == [USER]


def test_endless_output_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forebay.text.chat_template.MAX_PROMPT_CHARS", 1000)
    with pytest.raises(BadRequest, match="over 1000 characters"):
        ChatTemplate("{% for i in range(9999) %}{{ i }}\n{% endfor %}").render([USER])


def test_a_template_sees_copies_not_the_callers_objects() -> None:
    class Spy(str):
        def upper(self) -> str:
            raise AssertionError("a method of the caller's object was called")

    chat = [{"role": "user", "content": Spy("x"), "more": (1, True, 2.5)}]
    assert ChatTemplate("{{ messages[0].content.upper() }}").render(chat) == "X"
    assert ChatTemplate("{{ messages[0].more }}").render(chat) == "[1, True, 2.5]"
