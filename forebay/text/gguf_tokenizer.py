"""The tokenizer stored in a GGUF, rebuilt as a `tokenizers.Tokenizer`.

Two kinds are read, by `tokenizer.ggml.model`:
- `gpt2`: byte-level BPE; merges from the file, the cut before merging by `tokenizer.ggml.pre`;
- `llama`: SentencePiece BPE; merges derived from the scores, bytes for what has no token.

What a file leaves unsaid (ids of BOS and EOS, whether BOS is added) follows llama.cpp.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from os import PathLike
from typing import TYPE_CHECKING, Any

from forebay.errors import ModelError
from forebay.text.gguf_metadata import GgufMetadata, read_gguf_metadata
from forebay.text.pieces import SPACE_MARK
from forebay.text.pre_tokenizers import RULES, build_pre_tokenizer
from forebay.text.special_tokens import LoadedTokenizer, SpecialTokens, set_bos_eos

if TYPE_CHECKING:
    from tokenizers import Tokenizer, models

_KEY = "tokenizer.ggml."


class TokenType(IntEnum):
    """What `tokenizer.ggml.token_type` says of a token."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


def load_gguf_tokenizer(path: str | PathLike[str]) -> LoadedTokenizer:
    """Rebuild the tokenizer in the GGUF at `path`.

    Raises ModelError for a file without a tokenizer, of an unsupported kind, or inconsistent.
    """
    metadata = read_gguf_metadata(path)
    vocabulary = _Vocabulary.read(metadata)
    kind = metadata.text(_KEY + "model")
    if kind == "gpt2":
        tokenizer, adds_bos = _byte_level_bpe(metadata, vocabulary)
        special = _special_tokens(metadata, vocabulary, defaults={})
    elif kind == "llama":
        special = _special_tokens(metadata, vocabulary, defaults={"bos": 1, "eos": 2, "unknown": 0})
        tokenizer, adds_bos = _sentencepiece_bpe(metadata, vocabulary, special.unk_token), True
    else:
        raise ModelError(
            f"{metadata.source}: tokenizer.ggml.model is {kind!r}; supported: 'gpt2', 'llama'"
        )
    _add_whole_tokens(tokenizer, vocabulary, special)
    add_bos, add_eos = metadata.flag(_KEY + "add_bos_token"), metadata.flag(_KEY + "add_eos_token")
    set_bos_eos(
        tokenizer,
        special,
        add_bos=adds_bos if add_bos is None else add_bos,
        add_eos=bool(add_eos),
    )
    return LoadedTokenizer(
        tokenizer=tokenizer, special=special, chat_templates=_chat_templates(metadata)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Vocabulary:
    """Token texts and types; a token's place is its id."""

    tokens: list[str]
    types: list[int]
    source: str

    @classmethod
    def read(cls, metadata: GgufMetadata) -> "_Vocabulary":
        stored = metadata.texts(_KEY + "tokens")
        if not stored:
            raise ModelError(
                f"{metadata.source} holds no tokenizer: tokenizer.ggml.tokens is missing"
            )
        # Nameless tokens are placeholders; each needs a text of its own, as in llama.cpp.
        tokens = [text or f"[EMPTY_{index}]" for index, text in enumerate(stored)]
        types = metadata.numbers(_KEY + "token_type") or [TokenType.NORMAL] * len(tokens)
        if len(types) != len(tokens):
            raise ModelError(
                f"{metadata.source}: {len(tokens)} tokens but {len(types)} token types"
            )
        if len(set(tokens)) != len(tokens):
            raise ModelError(f"{metadata.source}: the vocabulary holds a token twice")
        return cls(tokens=tokens, types=types, source=metadata.source)

    def ids(self) -> dict[str, int]:
        return {text: index for index, text in enumerate(self.tokens)}


def _byte_level_bpe(metadata: GgufMetadata, vocabulary: _Vocabulary) -> tuple["Tokenizer", bool]:
    """The tokenizer, and whether its kind adds BOS when the file does not say."""
    from tokenizers import Tokenizer, decoders, normalizers

    name = metadata.text(_KEY + "pre") or "default"
    rule = RULES.get(name)
    if rule is None:
        raise ModelError(
            f"{metadata.source}: tokenizer.ggml.pre is {name!r}; supported: {', '.join(RULES)}"
        )
    pairs = metadata.texts(_KEY + "merges")
    if pairs is None:
        raise ModelError(f"{metadata.source}: a gpt2 tokenizer needs tokenizer.ggml.merges")
    model = _bpe_model(
        vocabulary,
        merges=_split_merges(pairs, metadata.source),
        ignore_merges=rule.ignore_merges,
    )
    tokenizer = Tokenizer(model)
    if rule.nfc:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = build_pre_tokenizer(rule)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer, rule.adds_bos


def _sentencepiece_bpe(
    metadata: GgufMetadata, vocabulary: _Vocabulary, unk_token: str | None
) -> "Tokenizer":
    from tokenizers import Tokenizer, decoders, normalizers

    scores = metadata.reals(_KEY + "scores")
    if scores is None or len(scores) != len(vocabulary.tokens):
        raise ModelError(f"{metadata.source}: a llama tokenizer needs one score per token")
    model = _bpe_model(
        vocabulary,
        merges=_merges_by_score(vocabulary, scores),
        unk_token=unk_token,
        fuse_unk=True,
        byte_fallback=True,
    )
    tokenizer = Tokenizer(model)
    prefix = metadata.flag(_KEY + "add_space_prefix")
    has_prefix = prefix is None or prefix
    spell: list[normalizers.Normalizer] = [normalizers.Replace(" ", SPACE_MARK)]
    read: list[decoders.Decoder] = [
        decoders.Replace(SPACE_MARK, " "),
        decoders.ByteFallback(),
        decoders.Fuse(),
    ]
    if has_prefix:
        spell.insert(0, normalizers.Prepend(SPACE_MARK))
        read.append(decoders.Strip(" ", 1, 0))
    tokenizer.normalizer = normalizers.Sequence(spell)
    tokenizer.decoder = decoders.Sequence(read)
    return tokenizer


def _bpe_model(vocabulary: _Vocabulary, **options: Any) -> "models.BPE":
    from tokenizers import models

    try:
        return models.BPE(vocab=vocabulary.ids(), **options)
    except Exception as error:  # tokenizers raises bare Exception: a merge outside the vocabulary
        raise ModelError(f"{vocabulary.source}: the merges do not fit: {error}") from error


def _split_merges(pairs: Sequence[str], source: str) -> list[tuple[str, str]]:
    merges = []
    for pair in pairs:
        left, _, right = pair.partition(" ")
        if not left or not right:
            raise ModelError(f"{source}: {pair!r} in tokenizer.ggml.merges is not a pair")
        merges.append((left, right))
    return merges


def _merges_by_score(vocabulary: _Vocabulary, scores: Sequence[float]) -> list[tuple[str, str]]:
    """Every way to make a token of two others, the best-scored token first.

    SentencePiece merges the neighbours whose union scores highest; a merge list in this order does
    the same. Ties are ordered as in the published `tokenizer.json` files of Llama 2.
    """
    ids = vocabulary.ids()
    made_by_merging = (TokenType.NORMAL, TokenType.USER_DEFINED, TokenType.UNUSED)
    found: list[tuple[float, int, int, str, str]] = []
    for text, kind, score in zip(vocabulary.tokens, vocabulary.types, scores, strict=True):
        if kind not in made_by_merging:
            continue
        cuts = ((text[:at], text[at:]) for at in range(1, len(text)))
        pairs = [(left, right) for left, right in cuts if left in ids and right in ids]
        pairs.sort(key=lambda pair: (ids[pair[0]], ids[pair[1]]))
        found += [(score, len(left), len(right), left, right) for left, right in pairs]
    found.sort(key=lambda merge: merge[:3], reverse=True)
    return [(left, right) for _, _, _, left, right in found]


def _special_tokens(
    metadata: GgufMetadata, vocabulary: _Vocabulary, *, defaults: Mapping[str, int]
) -> SpecialTokens:
    def token_id(role: str) -> int | None:
        index = metadata.number(f"{_KEY}{role}_token_id")
        index = defaults.get(role) if index is None else index
        if index is not None and not 0 <= index < len(vocabulary.tokens):
            raise ModelError(
                f"{metadata.source}: {role}_token_id {index} is outside the vocabulary"
            )
        return index

    def text(index: int | None) -> str | None:
        return None if index is None else vocabulary.tokens[index]

    bos, eos = token_id("bos"), token_id("eos")
    # End of turn and end of message stop a chat just as end of sequence does.
    ends = [index for index in (eos, token_id("eot"), token_id("eom")) if index is not None]
    return SpecialTokens(
        bos_id=bos,
        eos_ids=tuple(dict.fromkeys(ends)),
        bos_token=text(bos),
        eos_token=text(eos),
        unk_token=text(token_id("unknown")),
        pad_token=text(token_id("padding")),
    )


def _add_whole_tokens(
    tokenizer: "Tokenizer", vocabulary: _Vocabulary, special: SpecialTokens
) -> None:
    """Register the tokens that are matched whole in text before anything is cut or merged."""
    from tokenizers import AddedToken

    always_special = (TokenType.CONTROL, TokenType.UNKNOWN)
    named = set(special.named().values())
    for text, kind in zip(vocabulary.tokens, vocabulary.types, strict=True):
        if kind in always_special or text in named:
            tokenizer.add_special_tokens([AddedToken(text, normalized=False, special=True)])
        elif kind == TokenType.USER_DEFINED:
            tokenizer.add_tokens([AddedToken(text, normalized=False, special=False)])


def _chat_templates(metadata: GgufMetadata) -> dict[str, str]:
    prefix = "tokenizer.chat_template"
    templates = {}
    for key in metadata:
        if key == prefix or key.startswith(prefix + "."):
            template = metadata.text(key)
            if template:
                templates[key[len(prefix) + 1 :] or "default"] = template
    return templates
