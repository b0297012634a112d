"""The tokenizer in the embedded GGUF, against transformers and the published SmolLM2 one.

`tokenizer.json` of HuggingFaceTB/SmolLM2-135M-Instruct cuts text by Digits(individual_digits=True)
and ByteLevel(add_prefix_space=False, use_regex=True); llama.cpp's `smollm` does the same.
transformers 5.24 knows no rule for `smollm` and leaves the digits out when it reads a GGUF. That
shows only next to numbers: where two or more spaces come before a digit, or a number is not ASCII.
"""

import unicodedata
from typing import Any

import pytest
from tokenizers import Tokenizer, pre_tokenizers

from forebay.text import TextTokenizer
from forebay.text.pieces import _BYTE_OF

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def published(smollm2_by_transformers: Any) -> Tokenizer:
    """The model's own tokenizer: vocabulary and merges by transformers, the cut by hand."""
    tokenizer = Tokenizer.from_str(smollm2_by_transformers.backend_tokenizer.to_str())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    return tokenizer


def _touches_the_digit_rule(text: str) -> bool:
    for place, character in enumerate(text):
        if unicodedata.category(character).startswith("N"):
            if not character.isascii():
                return True
            if place >= 2 and text[place - 2 : place].isspace():
                return True
    return False


def test_ids_equal_the_published_tokenizer(
    smollm2: TextTokenizer, published: Tokenizer, strings: list[str]
) -> None:
    assert len(strings) >= 2000
    expected = [encoding.ids for encoding in published.encode_batch_fast(strings)]
    assert smollm2.encode_batch(strings) == expected
    assert [smollm2.encode(text) for text in strings[::10]] == expected[::10]


def test_ids_equal_transformers_but_for_its_missing_digit_rule(
    smollm2: TextTokenizer, smollm2_by_transformers: Any, strings: list[str]
) -> None:
    theirs = smollm2_by_transformers(strings)["input_ids"]
    ours = smollm2.encode_batch(strings)
    compared = 0
    for text, our, their in zip(strings, ours, theirs, strict=True):
        if not _touches_the_digit_rule(text):
            assert our == their, text
            compared += 1
    assert compared >= 2000
    # Were the rules the same, the exception above would be idle and should go.
    assert smollm2.encode("a  1") != smollm2_by_transformers.encode("a  1")


def test_decoding_equals_transformers(
    smollm2: TextTokenizer, smollm2_by_transformers: Any, strings: list[str]
) -> None:
    # Some bytes are not in this vocabulary, 0xF2 for one; encoding drops them.
    missing = {byte for char, byte in _BYTE_OF.items() if smollm2.backend.token_to_id(char) is None}
    assert 0xF2 in missing
    for skip in (True, False):
        for text, ids in zip(strings, smollm2.encode_batch(strings), strict=True):
            ours = smollm2.decode(ids, skip_special_tokens=skip)
            assert ours == smollm2_by_transformers.decode(ids, skip_special_tokens=skip)
            if not skip and missing.isdisjoint(text.encode()):
                assert ours == text


def test_special_tokens_and_sizes(smollm2: TextTokenizer, smollm2_by_transformers: Any) -> None:
    theirs = smollm2_by_transformers
    assert smollm2.vocab_size == len(theirs) == 49152
    assert smollm2.bos_token_id == theirs.bos_token_id == 1
    assert smollm2.eos_token_id == theirs.eos_token_id == 2
    assert smollm2.eos_token_ids == (2,)
    assert smollm2.special_ids == set(theirs.all_special_ids) | set(range(17))
    assert smollm2.token_text(2) == "<|im_end|>"
    assert smollm2.token_text(49152) is None


def test_chats_equal_transformers(smollm2: TextTokenizer, smollm2_by_transformers: Any) -> None:
    user = {"role": "user", "content": "Hi <|im_end|> there  12"}
    chats: list[list[dict[str, str]]] = [
        [user],
        [{"role": "system", "content": "Be brief."}, user],
        [user, {"role": "assistant", "content": "你好"}, user],
    ]
    for chat in chats:
        for generate in (True, False):
            theirs = smollm2_by_transformers.apply_chat_template(
                chat, tokenize=False, add_generation_prompt=generate
            )
            ours = smollm2.apply_chat_template(chat, add_generation_prompt=generate)
            assert ours == theirs
            ids = smollm2.encode_chat(chat, add_generation_prompt=generate)
            assert ids == smollm2.encode(theirs, add_special_tokens=False)
            assert ids.count(1) == theirs.count("<|im_start|>")
