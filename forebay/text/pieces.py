"""What each token contributes to text, by the kind of the tokenizer's decoder.

`tokenizers` decodes whole sequences only; incremental detokenising needs the share of one token.
Tables fill as tokens are met: a vocabulary has many more tokens than an answer.
"""

import json
import re
from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tokenizers import Tokenizer

SPACE_MARK = "\u2581"  # SentencePiece writes a space as this character


class DecoderKind(Enum):
    """The decoders whose tokens have a share of their own in the text, and all others."""

    BYTE_LEVEL = auto()
    SENTENCEPIECE = auto()
    OTHER = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderProfile:
    """How a tokenizer decodes, with the tables for it."""

    kind: DecoderKind
    strips_first_space: bool
    bytes_of: "ByteLevelPieces"
    text_of: "SentencePiecePieces"


def profile_decoder(backend: "Tokenizer") -> DecoderProfile:
    """Recognise the decoder of `backend` by its steps and their settings."""
    steps = _decoder_steps(backend)
    kinds = [step["type"] for step in steps]
    kind = DecoderKind.OTHER
    if kinds == ["ByteLevel"]:
        kind = DecoderKind.BYTE_LEVEL
    elif kinds[:3] == ["Replace", "ByteFallback", "Fuse"] and _is_llama(steps):
        kind = DecoderKind.SENTENCEPIECE
    return DecoderProfile(
        kind=kind,
        strips_first_space=len(steps) == 4,
        bytes_of=ByteLevelPieces(backend),
        text_of=SentencePiecePieces(backend),
    )


def _decoder_steps(backend: "Tokenizer") -> list[dict[str, object]]:
    decoder = backend.decoder
    if decoder is None:
        return [{"type": None}]
    state = json.loads(decoder.__getstate__())
    return list(state["decoders"]) if state["type"] == "Sequence" else [state]


def _is_llama(steps: list[dict[str, object]]) -> bool:
    """Whether the steps do what Llama 2's do: marks become spaces, at most one is stripped."""
    replace, strips = steps[0], steps[3:]
    if (replace["pattern"], replace["content"]) != ({"String": SPACE_MARK}, " "):
        return False
    strip = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
    return strips in ([], [strip])


class ByteLevelPieces(dict[int, bytes]):
    """Bytes of each token of a byte-level vocabulary, looked up once and kept."""

    def __init__(self, backend: "Tokenizer") -> None:
        super().__init__()
        self._backend = backend

    def __missing__(self, index: int) -> bytes:
        token = self._backend.id_to_token(index)
        if token is None:
            piece = b""
        else:
            # A token with any character outside the byte alphabet stands for its own text.
            values = [_BYTE_OF.get(character) for character in token]
            known = [value for value in values if value is not None]
            piece = bytes(known) if len(known) == len(values) else token.encode()
        self[index] = piece
        return piece


def _byte_alphabet() -> dict[str, int]:
    """Byte of each character of GPT-2's alphabet: printable Latin-1 is itself, the rest follows."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [byte for byte in range(0x100) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {
        chr(0x100 + place): byte for place, byte in enumerate(rest)
    }


_BYTE_OF = _byte_alphabet()

_BYTE_TOKEN = re.compile("<0x([0-9A-Fa-f]{2})>")


class SentencePiecePieces(dict[int, str | int | None]):
    """Per token of a SentencePiece vocabulary: its text, or its byte, or None for no token."""

    def __init__(self, backend: "Tokenizer") -> None:
        super().__init__()
        self._backend = backend

    def __missing__(self, index: int) -> str | int | None:
        token = self._backend.id_to_token(index)
        piece: str | int | None = None
        if token is not None:
            byte = _BYTE_TOKEN.fullmatch(token)
            piece = int(byte[1], 16) if byte else token.replace(SPACE_MARK, " ")
        self[index] = piece
        return piece
