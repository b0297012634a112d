"""Incremental text, joined, is exactly what decoding all tokens gives, however it was cut."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from forebay.text import Detokenizer, TextTokenizer
from forebay.text.special_tokens import LoadedTokenizer, SpecialTokens

# Fixtures are built once and never changed, so sharing them between examples is sound.
SHARED = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
NO_ROLES = SpecialTokens(
    bos_id=None, eos_ids=(), bos_token=None, eos_token=None, unk_token=None, pad_token=None
)


def _deltas(tokenizer: TextTokenizer, chunks: Sequence[Sequence[int]], **options: Any) -> list[str]:
    detokenizer = Detokenizer(tokenizer, **options)
    return [*(detokenizer.push(chunk) for chunk in chunks), detokenizer.finish()]


def _cut(ids: list[int], sizes: list[int]) -> list[list[int]]:
    """`ids` in chunks of the given sizes, over and over; size 0 is an empty chunk."""
    chunks, at = [], 0
    while at < len(ids):
        for size in [*sizes, 1]:
            chunks.append(ids[at : at + size])
            at += size
    return chunks


def _ids(*bounds: int) -> st.SearchStrategy[list[int]]:
    """Ids below one of `bounds`; a low bound makes bytes and special tokens frequent."""
    return st.lists(st.one_of([st.integers(0, bound) for bound in bounds]), max_size=40)


SIZES = st.lists(st.integers(0, 5), max_size=4)


# Ids 0..3 are special or user-defined, 4..259 single bytes, in both vocabularies; 2000 is none.
@given(ids=_ids(4, 260, 880, 2000), sizes=SIZES, skip=st.booleans())
@SHARED
def test_byte_level_random_tokens(
    bpe: TextTokenizer, ids: list[int], sizes: list[int], skip: bool
) -> None:
    deltas = _deltas(bpe, _cut(ids, sizes), skip_special_tokens=skip)
    assert "".join(deltas) == bpe.decode(ids, skip_special_tokens=skip)


@given(ids=_ids(4, 260, 340, 2000), sizes=SIZES, skip=st.booleans())
@SHARED
def test_sentencepiece_random_tokens(
    spm: TextTokenizer, ids: list[int], sizes: list[int], skip: bool
) -> None:
    deltas = _deltas(spm, _cut(ids, sizes), skip_special_tokens=skip)
    assert "".join(deltas) == spm.decode(ids, skip_special_tokens=skip)


@pytest.mark.model
@given(ids=_ids(16, 300, 49151), sizes=SIZES, skip=st.booleans())
@SHARED
def test_smollm2_random_tokens(
    smollm2: TextTokenizer, ids: list[int], sizes: list[int], skip: bool
) -> None:
    deltas = _deltas(smollm2, _cut(ids, sizes), skip_special_tokens=skip)
    assert "".join(deltas) == smollm2.decode(ids, skip_special_tokens=skip)


@given(text=st.text(max_size=20))
@settings(SHARED, max_examples=40)
def test_no_character_is_split_and_little_is_held_back(bpe: TextTokenizer, text: str) -> None:
    detokenizer = Detokenizer(bpe, skip_special_tokens=False)
    ids = bpe.encode(text)
    shown = ""
    for place, index in enumerate(ids, start=1):
        delta = detokenizer.push([index])
        assert "\ufffd" not in delta or "\ufffd" in text
        shown += delta
        so_far = bpe.decode(ids[:place], skip_special_tokens=False)
        assert so_far in (shown, shown + "\ufffd")
    assert detokenizer.finish() == ""
    assert shown == text


def test_every_string_of_the_corpus_token_by_token(
    bpe: TextTokenizer, spm: TextTokenizer, strings: list[str]
) -> None:
    for tokenizer in (bpe, spm):
        for ids in tokenizer.encode_batch(strings[::4]):
            for skip in (True, False):
                deltas = _deltas(tokenizer, [[index] for index in ids], skip_special_tokens=skip)
                assert "".join(deltas) == tokenizer.decode(ids, skip_special_tokens=skip)


def test_special_tokens_are_shown_as_written(bpe: TextTokenizer) -> None:
    text = "a<pad 你é><|end|>b"
    ids = bpe.encode(text)
    assert ids[1:3] == [2, 0]
    assert "".join(_deltas(bpe, [ids], skip_special_tokens=False)) == text
    assert "".join(_deltas(bpe, [ids])) == "ab"


def test_an_emoji_appears_whole_with_its_last_byte(bpe: TextTokenizer) -> None:
    ids = [_byte_id(bpe, byte) for byte in "é👍".encode()]
    assert _deltas(bpe, [[index] for index in ids]) == ["", "é", "", "", "", "👍", ""]


def _byte_id(tokenizer: TextTokenizer, byte: int) -> int:
    for index in range(4, 260):
        if tokenizer.decoder_profile.bytes_of[index] == bytes([byte]):
            return index
    raise AssertionError(f"no token for byte {byte}")


def test_bytes_that_form_no_character_become_replacements(bpe: TextTokenizer) -> None:
    stray, lead = _byte_id(bpe, 0x9F), _byte_id(bpe, 0xF0)
    letter = _byte_id(bpe, ord("a"))
    assert _deltas(bpe, [[stray], [lead], [letter], [lead]]) == [
        "\ufffd",
        "",
        "\ufffda",
        "",
        "\ufffd",
    ]


def test_a_run_of_byte_tokens_waits_for_its_end(spm: TextTokenizer) -> None:
    euro = [4 + byte for byte in "€".encode()]
    word = spm.encode("hello")[1]
    assert _deltas(spm, [[word], euro[:2], euro[2:], [word]]) == ["hello", "", "", "€ hello", ""]
    # One byte too many makes the whole run invalid, as decode has it.
    broken = [*euro, 4 + 0xFF]
    assert "".join(_deltas(spm, [broken])) == spm.decode(broken) == "\ufffd" * 4


def test_the_first_space_is_dropped_at_the_start_of_a_text_only(spm: TextTokenizer) -> None:
    hello = spm.encode("hello")
    assert _deltas(spm, [hello[1:], hello[1:]]) == ["hello", " hello", ""]
    assert _deltas(spm, [hello[1:]], prompt_ids=hello) == [" hello", ""]
    # A prompt of BOS alone has no text, so the output starts one.
    assert _deltas(spm, [hello[1:]], prompt_ids=hello[:1]) == ["hello", ""]
    assert _deltas(spm, [hello[1:]], prompt_ids=hello[:1], skip_special_tokens=False) == [
        " hello",
        "",
    ]


@given(prompt=_ids(4, 260, 880), ids=_ids(4, 260, 880))
@SHARED
def test_with_its_prompt_the_text_continues(
    bpe: TextTokenizer, prompt: list[int], ids: list[int]
) -> None:
    text = "".join(_deltas(bpe, [ids], prompt_ids=prompt))
    whole = bpe.decode([*prompt, *ids])
    assert whole.endswith(text)
    before = bpe.decode(prompt)
    if not before.endswith("\ufffd"):
        assert before + text == whole


@given(prompt=_ids(330), ids=_ids(330))
@settings(SHARED, max_examples=60)
def test_with_its_prompt_the_text_continues_in_sentencepiece(
    spm: TextTokenizer, prompt: list[int], ids: list[int]
) -> None:
    # Bytes that continue a run are left to the cases below; here the output begins with a word.
    output = [280, *ids]
    text = "".join(_deltas(spm, [output], prompt_ids=prompt))
    before = spm.decode(prompt)
    if not before.endswith("\ufffd"):
        assert spm.decode([*prompt, *output]) == before + text


def test_a_character_begun_in_the_prompt_is_completed(
    bpe: TextTokenizer, spm: TextTokenizer
) -> None:
    byte_level = [_byte_id(bpe, byte) for byte in "x€".encode()]
    assert _deltas(bpe, [byte_level[3:]], prompt_ids=byte_level[:3]) == ["€", ""]
    fallback = [4 + byte for byte in "\n€".encode()]
    assert _deltas(spm, [fallback[3:]], prompt_ids=fallback[:3]) == ["", "€"]


def test_a_newline_at_the_end_of_the_prompt_stays_there(spm: TextTokenizer) -> None:
    prompt = [*spm.encode("hello"), 4 + ord("\n")]
    word = spm.encode("the")[1]
    assert _deltas(spm, [[word]], prompt_ids=prompt) == [" the", ""]
    assert _deltas(spm, [[4 + ord("\n")], [word]], prompt_ids=prompt) == ["", "\n the", ""]


def test_only_the_end_of_a_long_prompt_is_read(spm: TextTokenizer) -> None:
    word = spm.encode("the")[1]
    reads: list[int] = []

    class Prompt(list[int]):
        def __reversed__(self) -> Any:
            for index in super().__reversed__():
                reads.append(index)
                yield index

    prompt = Prompt([word] * 50_000 + [1] * 3)
    assert _deltas(spm, [[word]], prompt_ids=prompt) == [" the", ""]
    assert len(reads) < 30


Build = Callable[[], TextTokenizer]


def _metaspace() -> TextTokenizer:
    vocabulary = {"<unk>": 0, "▁a": 1, "▁b": 2, "c": 3, "▁": 4, "dé": 5}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    return _wrap(tokenizer)


def _word_piece() -> TextTokenizer:
    vocabulary = {"[UNK]": 0, "play": 1, "##ing": 2, "we": 3, "##s": 4, "é": 5}
    tokenizer = Tokenizer(models.WordPiece(vocabulary))
    tokenizer.decoder = decoders.WordPiece(cleanup=False)
    return _wrap(tokenizer)


def _no_decoder() -> TextTokenizer:
    return _wrap(Tokenizer(models.WordLevel({"x": 0, "y": 1, "é": 2}, unk_token="x")))


def _byte_fallback_only() -> TextTokenizer:
    vocabulary = {"a": 0} | {f"<0x{byte:02X}>": byte + 1 for byte in range(256)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], byte_fallback=True))
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    return _wrap(tokenizer)


def _wrap(tokenizer: Tokenizer) -> TextTokenizer:
    return TextTokenizer(LoadedTokenizer(tokenizer=tokenizer, special=NO_ROLES, chat_templates={}))


@pytest.mark.parametrize("build", [_metaspace, _word_piece, _no_decoder])
@given(ids=_ids(6), sizes=SIZES)
@settings(SHARED, max_examples=40)
def test_other_decoders_through_the_window(build: Build, ids: list[int], sizes: list[int]) -> None:
    tokenizer = build()
    assert "".join(_deltas(tokenizer, _cut(ids, sizes))) == tokenizer.decode(ids)


def test_the_window_holds_characters_together_and_stays_short(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tokenizer = _byte_fallback_only()
    ids = tokenizer.encode("a😀" * 500)
    longest = 0
    decode = tokenizer.backend.decode

    def watched(window: list[int], *, skip_special_tokens: bool) -> str:
        nonlocal longest
        longest = max(longest, len(window))
        return str(decode(window, skip_special_tokens=skip_special_tokens))

    monkeypatch.setattr(tokenizer, "decode", watched)
    deltas = _deltas(tokenizer, [[index] for index in ids])
    assert set(deltas) == {"a", "😀", ""}
    assert "".join(deltas) == "a😀" * 500
    assert longest <= 8
    broken = [0xF0 + 1] * 200
    _deltas(tokenizer, [[index] for index in broken])
    assert longest <= 24
