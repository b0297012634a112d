"""Incremental detokenising: each new token's text as soon as it is certain, at O(1) a token.

The promise, held by property tests: what `push` and `finish` return, joined, is exactly what
`TextTokenizer.decode` gives for all the ids, wherever the stream was cut. Hence a character whose
bytes are incomplete is held back, and bytes that can form no character become U+FFFD.

How a token becomes text is decided by the tokenizer's decoder, of which three kinds are told apart:
- byte-level: tokens are bytes, the text is their UTF-8; at most three bytes are held back;
- SentencePiece with byte fallback: a run of byte tokens is held until it ends, since one wrong
  byte turns the whole run into U+FFFD; the first space of the text is dropped;
- any other: a sliding window of tokens is decoded anew (the way of vLLM 0.25.1); exact as long as
  a token's text depends on its neighbours alone.
"""

from codecs import getincrementaldecoder
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

from forebay.text.pieces import ByteLevelPieces, DecoderKind, SentencePiecePieces

if TYPE_CHECKING:
    from forebay.text.tokenizer import TextTokenizer

_TAIL_TOKENS = 16  # prompt tokens with text that are looked at: more than any held-back run
_LONGEST_HOLD = 8  # tokens: a character has four bytes, so more of them will never complete it
_REPLACEMENT = "\ufffd"
_Utf8 = getincrementaldecoder("utf-8")


class _Stream(Protocol):
    """What one kind of decoder does with tokens."""

    def push(self, ids: Iterable[int]) -> str: ...

    def begin_output(self) -> None:
        """What was pushed so far is prompt: keep only what the next token may complete."""

    def finish(self) -> str: ...


class Detokenizer:
    """The text of one output sequence, token by token.

    `prompt_ids` are the tokens before the output, if its text is meant to continue theirs: then a
    leading space is kept that the start of a text would lose, and a character begun in the prompt
    is completed in the output. Only their last few are read.
    """

    def __init__(
        self,
        tokenizer: "TextTokenizer",
        *,
        skip_special_tokens: bool = True,
        prompt_ids: Sequence[int] = (),
    ) -> None:
        skipped = tokenizer.special_ids if skip_special_tokens else frozenset()
        self._skipped = skipped
        self._stream = _open_stream(tokenizer, skip_special_tokens)
        if len(prompt_ids):
            self._stream.push(_tail(prompt_ids, skipped))
            self._stream.begin_output()

    def push(self, ids: Iterable[int]) -> str:
        """The text that is certain once `ids` follow what was pushed before; may be empty."""
        skipped = self._skipped
        return self._stream.push([index for index in ids if index not in skipped])

    def finish(self) -> str:
        """What was held back, as decoding gives it when nothing more follows."""
        return self._stream.finish()


def _tail(prompt_ids: Sequence[int], skipped: frozenset[int]) -> list[int]:
    """The last tokens of the prompt that are not skipped, in order."""
    found: list[int] = []
    for index in reversed(prompt_ids):
        if index not in skipped:
            found.append(index)
            if len(found) == _TAIL_TOKENS:
                break
    return found[::-1]


def _open_stream(tokenizer: "TextTokenizer", skip_special_tokens: bool) -> _Stream:
    profile = tokenizer.decoder_profile
    if profile.kind is DecoderKind.BYTE_LEVEL:
        return _ByteLevelStream(profile.bytes_of)
    if profile.kind is DecoderKind.SENTENCEPIECE:
        return _SentencePieceStream(profile.text_of, strips=profile.strips_first_space)
    return _WindowStream(tokenizer, skip_special_tokens)


class _ByteLevelStream:
    def __init__(self, pieces: ByteLevelPieces) -> None:
        self._pieces = pieces
        self._utf8 = _Utf8(errors="replace")

    def push(self, ids: Iterable[int]) -> str:
        pieces = self._pieces
        return self._utf8.decode(b"".join([pieces[index] for index in ids]))

    def begin_output(self) -> None:
        # The decoder keeps just the bytes of an unfinished character.
        pass

    def finish(self) -> str:
        return self._utf8.decode(b"", final=True)


class _SentencePieceStream:
    def __init__(self, pieces: SentencePiecePieces, *, strips: bool) -> None:
        self._pieces = pieces
        self._strips = strips  # one space at the start of the text is still to be dropped
        self._run = bytearray()  # byte tokens since the last other token

    def push(self, ids: Iterable[int]) -> str:
        parts: list[str] = []
        for index in ids:
            piece = self._pieces[index]
            if isinstance(piece, int):
                self._run.append(piece)
            elif piece is not None:
                if self._run:
                    parts.append(self._close_run())
                parts.append(piece)
        return self._strip("".join(parts))

    def begin_output(self) -> None:
        # Whole characters of the run belong to the prompt; the output may complete the last one.
        utf8 = _Utf8(errors="replace")
        done = utf8.decode(bytes(self._run))
        self._run = bytearray(utf8.getstate()[0])
        self._strip(done)

    def finish(self) -> str:
        return self._strip(self._close_run())

    def _close_run(self) -> str:
        run = bytes(self._run)
        self._run.clear()
        try:
            return run.decode()
        except UnicodeDecodeError:
            return _REPLACEMENT * len(run)

    def _strip(self, text: str) -> str:
        if self._strips and text:
            self._strips = False
            return text.removeprefix(" ")
        return text


class _WindowStream:
    """Decodes the tokens since a point where the text was whole, twice: with and without news."""

    def __init__(self, tokenizer: "TextTokenizer", skip_special_tokens: bool) -> None:
        self._tokenizer = tokenizer
        self._skip = skip_special_tokens
        self._window: list[int] = []
        self._read = 0  # tokens of the window whose text was given out

    def push(self, ids: Iterable[int]) -> str:
        # Ids outside the vocabulary decode to nothing; as context they would hide the token before.
        known = [index for index in ids if self._tokenizer.token_text(index) is not None]
        return "".join([self._push_one(index) for index in known])

    def _push_one(self, index: int) -> str:
        self._window.append(index)
        text = self._decode(self._window)
        is_cut = text.endswith(_REPLACEMENT) and len(self._window) - self._read <= _LONGEST_HOLD
        if is_cut:
            return ""
        return self._give_out(text)

    def begin_output(self) -> None:
        pass

    def finish(self) -> str:
        return self._give_out(self._decode(self._window))

    def _give_out(self, text: str) -> str:
        known = self._decode(self._window[: self._read]) if self._read else ""
        # The tokens just read stay as context: a decoder may join them to the next with a space.
        del self._window[: self._read]
        self._read = len(self._window)
        return text[len(known) :]

    def _decode(self, ids: Sequence[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=self._skip)
