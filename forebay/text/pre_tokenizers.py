"""How a byte-level BPE model cuts text before merging, by its `tokenizer.ggml.pre` name.

A GGUF names its pre-tokenizer and stores nothing of it, so the rules stand here: the regular
expressions of the models' own `tokenizer.json`, as llama.cpp (src/llama-vocab.cpp, commit
00ad355e) quotes them beside the names it writes into files. A model whose rule is not known here
is refused: cut in another way, its text would become tokens it was never trained on.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tokenizers.pre_tokenizers import PreTokenizer

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2 = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
# Upper, lower: one optional lead character, then capitals, then the rest of a word.
_CASED_WORD = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+%(suffix)s"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*%(suffix)s"
)
_CASED_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_TEKKEN = _CASED_WORD % {"suffix": ""} + r"|\p{N}" + _CASED_REST
_GPT4O = _CASED_WORD % {"suffix": "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"} + r"|\p{N}{1,3}" + _CASED_REST


@dataclass(frozen=True, slots=True, kw_only=True)
class PreTokenizerRule:
    """One way to cut text, and what else a file with this name leaves unsaid."""

    splits: tuple[str, ...]  # applied in turn; matches and what lies between both become pieces
    single_digits: bool = False  # cut every digit off first
    nfc: bool = False  # Unicode normal form C before cutting
    ignore_merges: bool = False  # a piece that is a token is taken whole, whatever the merges say
    adds_bos: bool = False  # when the file has no add_bos_token flag


_GPT2_RULE = PreTokenizerRule(splits=(_GPT2,))
# Digits(individual_digits=True), then ByteLevel(use_regex=True): SmolLM 1 and 2, StarCoder.
_SMOLLM_RULE = PreTokenizerRule(splits=(_GPT2,), single_digits=True)
_LLAMA3_RULE = PreTokenizerRule(splits=(_LLAMA3,), ignore_merges=True, adds_bos=True)
_CJK_KANA_HANGUL = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"

RULES: Mapping[str, PreTokenizerRule] = MappingProxyType(
    {
        "default": PreTokenizerRule(
            splits=(r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]")
        ),
        "gpt-2": _GPT2_RULE,
        "phi-2": _GPT2_RULE,
        "smollm": _SMOLLM_RULE,
        "starcoder": _SMOLLM_RULE,
        "refact": _SMOLLM_RULE,
        "llama-bpe": _LLAMA3_RULE,
        "llama3": _LLAMA3_RULE,
        "llama-v3": _LLAMA3_RULE,
        "falcon3": _LLAMA3_RULE,
        "dbrx": PreTokenizerRule(splits=(_LLAMA3,)),
        "smaug-bpe": PreTokenizerRule(splits=(_LLAMA3,)),
        "qwen2": PreTokenizerRule(splits=(_QWEN2,), nfc=True),
        "deepseek-r1-qwen": PreTokenizerRule(splits=(_QWEN2,)),
        "tekken": PreTokenizerRule(splits=(_TEKKEN,), ignore_merges=True, adds_bos=True),
        "gpt-4o": PreTokenizerRule(splits=(_GPT4O,)),
        "deepseek-coder": PreTokenizerRule(
            splits=(r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _CJK_KANA_HANGUL, r"\p{N}")
        ),
    }
)


def build_pre_tokenizer(rule: PreTokenizerRule) -> "PreTokenizer":
    """The `tokenizers` object for `rule`; it ends by spelling bytes in the byte-level alphabet."""
    from tokenizers import Regex
    from tokenizers import pre_tokenizers as pre

    steps: list[PreTokenizer] = []
    if rule.single_digits:
        steps.append(pre.Digits(individual_digits=True))
    steps += [pre.Split(Regex(pattern), behavior="isolated") for pattern in rule.splits]
    steps.append(pre.ByteLevel(add_prefix_space=False, use_regex=False))
    return pre.Sequence(steps)
