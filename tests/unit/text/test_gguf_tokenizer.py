"""Tokenizers rebuilt from small GGUF files: both kinds, every pre-tokenizer rule, every refusal."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Regex, pre_tokenizers

from forebay.errors import BadRequest, ModelError
from forebay.text import TextTokenizer
from forebay.text.pre_tokenizers import RULES, build_pre_tokenizer
from tests.unit.text.tiny_files import sentencepiece_arrays, write_gguf

Loader = Callable[..., TextTokenizer]


@pytest.fixture
def load_bpe(tmp_path: Path, bpe_arrays: dict[str, list[Any]]) -> Loader:
    def load(arrays: dict[str, list[Any]] | None = None, **keys: Any) -> TextTokenizer:
        keys = {"model": "gpt2", "pre": "gpt-2", "eos_token_id": 0, "bos_token_id": 1} | keys
        return TextTokenizer.load(write_gguf(tmp_path / "x.gguf", arrays or bpe_arrays, **keys))

    return load


@pytest.fixture
def load_spm(tmp_path: Path) -> Loader:
    def load(arrays: dict[str, list[Any]] | None = None, **keys: Any) -> TextTokenizer:
        arrays = arrays or sentencepiece_arrays()
        return TextTokenizer.load(write_gguf(tmp_path / "x.gguf", arrays, model="llama", **keys))

    return load


def _by_transformers(path: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name)


def test_byte_level_bpe_equals_transformers(
    bpe: TextTokenizer, bpe_path: Path, strings: list[str]
) -> None:
    theirs = _by_transformers(bpe_path)
    # transformers 5.24 gives every gpt2 file GPT-2's unknown token, whether it has one or not.
    plain = [text for text in strings if "<|endoftext|>" not in text]
    assert len(plain) > 2000
    assert bpe.encode_batch(plain) == theirs(plain)["input_ids"]
    for text in strings:
        assert bpe.decode(bpe.encode(text), skip_special_tokens=False) == text


def test_sentencepiece_equals_transformers_after_the_first_space(
    spm: TextTokenizer, spm_path: Path, strings: list[str]
) -> None:
    theirs = _by_transformers(spm_path)
    # transformers 5.24 adds no space before a text that begins with one; SentencePiece always does.
    plain = [text for text in strings if not text.startswith((" ", "▁")) and "<" not in text]
    assert len(plain) > 1800
    assert spm.encode_batch(plain) == theirs(plain)["input_ids"]
    for text in plain:
        assert spm.decode(spm.encode(text)) == theirs.decode(theirs.encode(text), True)


def test_sentencepiece_by_hand(spm: TextTokenizer) -> None:
    def tokens(text: str) -> list[str | None]:
        return [spm.token_text(index) for index in spm.encode(text)]

    assert tokens("hello") == ["<s>", "▁hello"]
    assert tokens(" hello") == ["<s>", "▁", "▁hello"]
    assert tokens("") == ["<s>"]
    assert tokens("the therein") == ["<s>", "▁the", "▁the", "r", "e", "in"]
    assert tokens("é~") == ["<s>", "▁", "é", "<0x7E>"]
    assert tokens("Ж") == ["<s>", "▁", "<0xD0>", "<0x96>"]
    # Text after a token matched whole begins anew, with a space before it.
    assert tokens("a<think>a</s>a") == ["<s>", "▁a", "<think>", "▁a", "</s>", "▁a"]
    assert spm.decode(spm.encode("é~ Ж")) == "é~ Ж"


def test_sentencepiece_without_space_prefix_and_bos(load_spm: Loader) -> None:
    tokenizer = load_spm(add_space_prefix=False, add_bos_token=False, add_eos_token=True)
    ids = tokenizer.encode("hello the")
    assert [tokenizer.token_text(i) for i in ids] == ["h", "el", "lo", "▁the", "</s>"]
    assert tokenizer.decode(ids) == "hello the"
    assert tokenizer.decode(tokenizer.encode(" the")) == " the"


def test_unknown_characters_are_one_unknown_token_when_there_are_no_bytes(load_spm: Loader) -> None:
    arrays = sentencepiece_arrays()
    kept = [place for place, kind in enumerate(arrays["token_type"]) if kind != 6]
    tokenizer = load_spm({name: [items[p] for p in kept] for name, items in arrays.items()})
    tokens = [tokenizer.token_text(index) for index in tokenizer.encode("aЖЖЖa")]
    assert tokens == ["<s>", "▁a", "<unk>", "a"]


def test_roles_default_to_those_of_llama_cpp(load_spm: Loader, load_bpe: Loader) -> None:
    spm = load_spm()
    assert (spm.bos_token_id, spm.eos_token_ids) == (1, (2,))
    assert spm.special_ids == {0, 1, 2}
    bpe = load_bpe(eos_token_id=None, bos_token_id=None)
    assert (bpe.bos_token_id, bpe.eos_token_id, bpe.eos_token_ids) == (None, None, ())


def test_ends_of_turn_and_message_end_a_generation_too(load_bpe: Loader) -> None:
    tokenizer = load_bpe(eos_token_id=2, eot_token_id=0, eom_token_id=2)
    assert tokenizer.eos_token_id == 2
    assert tokenizer.eos_token_ids == (2, 0)


@pytest.mark.parametrize(
    ("pre", "flag", "adds"),
    [
        ("gpt-2", None, False),
        ("gpt-2", True, True),
        ("llama-bpe", None, True),
        ("llama-bpe", False, False),
        ("tekken", None, True),
        ("qwen2", None, False),
    ],
)
def test_bos_by_flag_or_by_kind(load_bpe: Loader, pre: str, flag: bool | None, adds: bool) -> None:
    tokenizer = load_bpe(pre=pre, add_bos_token=flag)
    assert (tokenizer.encode("x")[0] == 1) is adds
    assert tokenizer.encode("x", add_special_tokens=False)[0] != 1


def test_user_defined_tokens_are_whole_but_not_special(bpe: TextTokenizer) -> None:
    ids = bpe.encode("a<think>b<|end|>")
    assert [bpe.token_text(i) for i in ids] == ["a", "<think>", "b", "<|end|>"]
    assert bpe.decode(ids) == "a<think>b"
    assert bpe.decode(ids, skip_special_tokens=False) == "a<think>b<|end|>"


def _pieces(name: str, text: str) -> list[str]:
    found = build_pre_tokenizer(RULES[name]).pre_tokenize_str(text)
    return [text[start:end] for _, (start, end) in found]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("gpt-2", ["IT", "'", "S", "  ", " 12345", "\n\n", "\n", "x"]),
        ("smollm", ["IT", "'", "S", "   ", "1", "2", "3", "4", "5", "\n\n", "\n", "x"]),
        ("llama-bpe", ["IT", "'S", "  ", " ", "123", "45", "\n\n\n", "x"]),
        ("qwen2", ["IT", "'S", "  ", " ", "1", "2", "3", "4", "5", "\n\n\n", "x"]),
        ("tekken", ["IT", "'S", "  ", " ", "1", "2", "3", "4", "5", "\n\n\n", "x"]),
        ("gpt-4o", ["IT'S", "  ", " ", "123", "45", "\n\n\n", "x"]),
        ("default", ["IT", "'", "S", "  ", " ", "123", "45", "\n\n", "\n", "x"]),
        ("deepseek-coder", ["IT", "'", "S", "   ", "1", "2", "3", "4", "5", *"\n\n", "\n", "x"]),
    ],
)
def test_each_rule_cuts_a_sample_as_written_down(name: str, expected: list[str]) -> None:
    assert _pieces(name, "IT'S   12345\n\n\nx") == expected


def test_rules_cut_as_the_expressions_of_transformers(strings: list[str]) -> None:
    from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS

    shared = sorted(RULES.keys() & GGUF_PRE_TOKENIZER_SPLITS.keys())
    assert len(shared) == 10
    for name in shared:
        theirs = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(GGUF_PRE_TOKENIZER_SPLITS[name]), "isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
        ours = build_pre_tokenizer(RULES[name])
        for text in strings[::8]:
            assert ours.pre_tokenize_str(text) == theirs.pre_tokenize_str(text), (name, text)


def test_qwen2_normalises_to_composed_characters(load_bpe: Loader) -> None:
    qwen, plain = load_bpe(pre="qwen2"), load_bpe(pre="deepseek-r1-qwen")
    assert qwen.encode("e\u0301") == qwen.encode("\u00e9")
    assert plain.encode("e\u0301") != plain.encode("\u00e9")


def test_llama3_takes_a_known_piece_whole_whatever_the_merges(
    load_bpe: Loader, bpe_arrays: dict[str, list[Any]]
) -> None:
    arrays = {name: list(items) for name, items in bpe_arrays.items()}
    arrays["tokens"].append("zqzq")
    arrays["token_type"].append(1)
    whole = load_bpe(arrays, pre="llama-bpe", add_bos_token=False)
    assert whole.encode("zqzq") == [len(arrays["tokens"]) - 1]
    assert len(load_bpe(arrays, pre="dbrx").encode("zqzq")) > 1


def test_nameless_tokens_get_names_of_their_own(
    load_bpe: Loader, bpe_arrays: dict[str, list[Any]]
) -> None:
    arrays = {name: list(items) for name, items in bpe_arrays.items()}
    size = len(arrays["tokens"])
    arrays["tokens"] += ["", ""]
    arrays["token_type"] += [5, 5]
    tokenizer = load_bpe(arrays)
    assert tokenizer.vocab_size == size + 2
    assert tokenizer.token_text(size) == f"[EMPTY_{size}]"


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"pre": "gemma4"}, "pre is 'gemma4'; supported: default, gpt-2"),
        ({"model": "t5"}, "model is 't5'; supported: 'gpt2', 'llama'"),
        ({"model": None}, "model is None"),
        ({"model": "llama"}, "one score per token"),
        ({"eos_token_id": 100_000}, "eos_token_id 100000 is outside the vocabulary"),
        ({"add_bos_token": "yes"}, "add_bos_token should be a boolean"),
    ],
)
def test_unsupported_and_inconsistent_keys(
    load_bpe: Loader, keys: dict[str, Any], message: str
) -> None:
    with pytest.raises(ModelError, match=message):
        load_bpe(**keys)


def _with(arrays: dict[str, list[Any]], **changes: list[Any] | None) -> dict[str, list[Any]]:
    return {name: items for name, items in (arrays | changes).items() if items is not None}


def test_unsupported_and_inconsistent_arrays(
    load_bpe: Loader, bpe_arrays: dict[str, list[Any]]
) -> None:
    tokens = bpe_arrays["tokens"]
    cases = {
        "holds no tokenizer": _with(bpe_arrays, tokens=None),
        "holds a token twice": _with(bpe_arrays, tokens=[tokens[1], *tokens[1:]]),
        "token types": _with(bpe_arrays, token_type=bpe_arrays["token_type"][1:]),
        "needs tokenizer.ggml.merges": _with(bpe_arrays, merges=None),
        "is not a pair": _with(bpe_arrays, merges=["ab"]),
        "merges do not fit": _with(bpe_arrays, merges=["你 好"]),
    }
    for message, arrays in cases.items():
        with pytest.raises(ModelError, match=message):
            load_bpe(arrays)


def test_nothing_at_the_path(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="does not exist"):
        TextTokenizer.load(tmp_path / "nothing")


def test_text_that_is_no_text_is_a_bad_request(bpe: TextTokenizer) -> None:
    with pytest.raises(BadRequest, match="lone surrogate at character 2"):
        bpe.encode("ab\ud800c")
    with pytest.raises(BadRequest, match="lone surrogate"):
        bpe.encode_batch(["ok", "\udfff"])
    with pytest.raises(BadRequest, match="a string, not int"):
        bpe.encode(7)  # type: ignore[arg-type]  # what a caller without types may do
