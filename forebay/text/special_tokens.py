"""The tokens with a role: where a sequence begins and ends, and what is added to a prompt."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tokenizers import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecialTokens:
    """Ids that the engine acts on, and texts that chat templates may print."""

    bos_id: int | None
    eos_ids: tuple[int, ...]  # any of them ends a generation; the first is the tokenizer's own
    bos_token: str | None
    eos_token: str | None
    unk_token: str | None
    pad_token: str | None

    def named(self) -> dict[str, str]:
        """The texts that exist, under the names chat templates know (`bos_token`, ...)."""
        names = ("bos_token", "eos_token", "unk_token", "pad_token")
        return {name: text for name in names if (text := getattr(self, name)) is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedTokenizer:
    """A `tokenizers` object and what stands beside it in the model's files."""

    tokenizer: "Tokenizer"
    special: SpecialTokens
    chat_templates: Mapping[str, str]  # by name; the usual one is called "default"


def set_bos_eos(
    tokenizer: "Tokenizer", special: SpecialTokens, *, add_bos: bool, add_eos: bool
) -> None:
    """Make encoding add BOS before and EOS after a text, where asked and where such a token is."""
    from tokenizers.processors import TemplateProcessing

    before = [special.bos_token] if add_bos and special.bos_token is not None else []
    after = [special.eos_token] if add_eos and special.eos_token is not None else []
    tokenizer.post_processor = TemplateProcessing(
        single=[*before, "$A", *after],
        pair=[*before, "$A", *after, *before, "$B:1", *after],
        special_tokens=[
            (text, tokenizer.token_to_id(text)) for text in dict.fromkeys([*before, *after])
        ],
    )
