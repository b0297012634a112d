"""Tokenizers from a folder with tokenizer.json, against transformers reading the same folder."""

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import processors

from forebay.errors import BadRequest, ModelError
from forebay.text import TextTokenizer
from tests.unit.text.conftest import CHATML

CONFIG: dict[str, Any] = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "eos_token": "<|end|>",
    "bos_token": {"__type": "AddedToken", "content": "<|start|>", "special": True},
    "pad_token": None,
    "unk_token": None,
}


@pytest.fixture
def folder(tmp_path: Path, bpe: TextTokenizer) -> Path:
    bpe.backend.save(str(tmp_path / "tokenizer.json"))
    _write(tmp_path / "tokenizer_config.json", CONFIG)
    return tmp_path


def _write(path: Path, value: Any) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(value if isinstance(value, str) else json.dumps(value), encoding="utf-8")


def _by_transformers(folder: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(str(folder))


def test_ids_and_text_equal_transformers(folder: Path, strings: list[str]) -> None:
    ours, theirs = TextTokenizer.load(folder), _by_transformers(folder)
    found = ours.encode_batch(strings)
    assert found == theirs(strings)["input_ids"]
    for ids in found[::7]:
        assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)
    assert (ours.bos_token_id, ours.eos_token_id) == (theirs.bos_token_id, theirs.eos_token_id)


@pytest.mark.parametrize("flags", [{}, {"add_bos_token": False}, {"add_eos_token": True}])
def test_the_post_processor_decides_on_bos_and_flags_do_not(
    folder: Path, flags: dict[str, bool]
) -> None:
    _write(folder / "tokenizer_config.json", CONFIG | flags)
    _add_bos(folder)
    ids = TextTokenizer.load(folder).encode("hi")
    assert ids == _by_transformers(folder).encode("hi")
    assert (ids[0], ids[-1] == 0) == (1, False)


def _add_bos(folder: Path) -> None:
    state = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    template = processors.TemplateProcessing(
        single="<|start|> $A", pair="<|start|> $A $B", special_tokens=[("<|start|>", 1)]
    )
    state["post_processor"] = json.loads(template.__getstate__())
    _write(folder / "tokenizer.json", state)


def test_truncation_and_padding_are_switched_off(folder: Path, bpe: TextTokenizer) -> None:
    state = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    state["truncation"] = json.loads(
        '{"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}'
    )
    state["padding"] = json.loads(
        '{"strategy": {"Fixed": 8}, "direction": "Left", "pad_to_multiple_of": null,'
        ' "pad_id": 2, "pad_type_id": 0, "pad_token": "<pad 你é>"}'
    )
    _write(folder / "tokenizer.json", state)
    for text in ("", "a", "a longer text than two tokens"):
        assert TextTokenizer.load(folder).encode(text) == bpe.encode(text)


def test_roles_from_the_map_when_the_config_is_silent(folder: Path) -> None:
    config = {name: value for name, value in CONFIG.items() if name != "eos_token"}
    _write(folder / "tokenizer_config.json", config)
    _write(folder / "special_tokens_map.json", {"eos_token": "<pad 你é>", "pad_token": "<|end|>"})
    tokenizer = TextTokenizer.load(folder)
    assert tokenizer.eos_token_id == 2
    assert tokenizer.bos_token_id == 1


@pytest.mark.parametrize(
    ("generation", "expected"),
    [({"eos_token_id": 2}, (0, 2)), ({"eos_token_id": [2, 0, 5]}, (0, 2, 5)), ({}, (0,))],
)
def test_generation_config_adds_ends(folder: Path, generation: Any, expected: Any) -> None:
    _write(folder / "generation_config.json", generation)
    assert TextTokenizer.load(folder).eos_token_ids == expected


def test_tokens_named_only_in_the_config_are_added(folder: Path, bpe: TextTokenizer) -> None:
    size = bpe.vocab_size
    added = {str(size): {"content": "<tool>", "special": False, "normalized": False}}
    config = CONFIG | {"added_tokens_decoder": added, "unk_token": "<unknown>"}
    _write(folder / "tokenizer_config.json", config)
    ours = TextTokenizer.load(folder)
    text = "a<tool>b<unknown>"
    ids = ours.encode(text)
    assert ids == _by_transformers(folder).encode(text)
    assert (size in ids, size + 1 in ids) == (True, True)
    assert ours.decode(ids) == "a<tool>b"
    assert ours.vocab_size == size + 2


def test_chat_template_sources_and_their_order(folder: Path) -> None:
    chat = [{"role": "user", "content": "x"}]
    with pytest.raises(BadRequest, match="no chat template"):
        TextTokenizer.load(folder).apply_chat_template(chat)
    _write(folder / "tokenizer_config.json", CONFIG | {"chat_template": CHATML})
    assert TextTokenizer.load(folder).chat_template == CHATML
    named = [{"name": "default", "template": "D"}, {"name": "tool_use", "template": "T"}]
    _write(folder / "tokenizer_config.json", CONFIG | {"chat_template": named})
    _write(folder / "additional_chat_templates" / "rag.jinja", "R")
    tokenizer = TextTokenizer.load(folder)
    assert tokenizer.apply_chat_template(chat) == "D"
    assert tokenizer.apply_chat_template(chat, tools=[{"name": "f"}]) == "T"
    assert tokenizer.apply_chat_template(chat, chat_template="rag") == "R"
    assert tokenizer.apply_chat_template(chat, chat_template="{{ bos_token }}") == "<|start|>"
    _write(folder / "chat_template.jinja", "F{{ eos_token }}")
    assert TextTokenizer.load(folder).apply_chat_template(chat) == "F<|end|>"


def test_a_chat_gets_no_second_bos(folder: Path) -> None:
    template = "{{ bos_token }}" + CHATML
    _write(folder / "tokenizer_config.json", CONFIG | {"chat_template": template})
    _add_bos(folder)
    tokenizer = TextTokenizer.load(folder)
    ids = tokenizer.encode_chat([{"role": "user", "content": "x"}], add_generation_prompt=False)
    assert ids[0] == 1
    assert ids[2] != 1
    # One by the template, one that opens the message; a plain prompt gets one more in front.
    assert ids.count(1) == 2
    prompt = tokenizer.decode(ids, skip_special_tokens=False)
    assert tokenizer.encode(prompt).count(1) == 3


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("tokenizer.json", "{", "cannot be read as a tokenizer"),
        ("tokenizer.json", {"version": "1.0"}, "cannot be read as a tokenizer"),
        ("tokenizer_config.json", "{", "cannot be read as JSON"),
        ("tokenizer_config.json", {"added_tokens_decoder": {"x": {"content": "a"}}}, "lists 'x'"),
        ("special_tokens_map.json", [], "should hold a JSON object, not list"),
    ],
)
def test_broken_files_are_named(folder: Path, name: str, content: Any, message: str) -> None:
    _write(folder / name, content)
    with pytest.raises(ModelError, match=message) as caught:
        TextTokenizer.load(folder)
    assert name in str(caught.value)


def test_a_folder_without_tokenizer_json(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"tokenizer\.json is missing"):
        TextTokenizer.load(tmp_path)
