"""`TextTokenizer`: text to token ids and back, and chats to prompts, for one model."""

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from forebay.errors import BadRequest, ModelError
from forebay.text.chat_template import ChatTemplate
from forebay.text.gguf_tokenizer import load_gguf_tokenizer
from forebay.text.hf_tokenizer import load_hf_tokenizer
from forebay.text.pieces import DecoderProfile, profile_decoder
from forebay.text.special_tokens import LoadedTokenizer

if TYPE_CHECKING:
    from tokenizers import Tokenizer


class TextTokenizer:
    """A model's tokenizer with its special tokens and chat template. Safe to share by threads.

    Text that spells a special token ("<|im_end|>") becomes that token, in prompts and in chat
    messages alike, as in transformers and vLLM: who must not allow it filters the text first.
    """

    def __init__(self, loaded: LoadedTokenizer) -> None:
        self.backend: Tokenizer = loaded.tokenizer
        self._special = loaded.special
        self._templates = dict(loaded.chat_templates)
        self._compiled: dict[str, ChatTemplate] = {}

    @classmethod
    def load(cls, path: str | PathLike[str]) -> "TextTokenizer":
        """From a GGUF file, or from a folder with a `tokenizer.json`.

        Raises ModelError when there is neither, or when what is there cannot be used.
        """
        place = Path(path)
        if place.is_dir():
            return cls(load_hf_tokenizer(place))
        if not place.exists():
            raise ModelError(f"{place} does not exist; give a .gguf file or a model folder")
        return cls(load_gguf_tokenizer(place))

    @cached_property
    def vocab_size(self) -> int:
        """One more than the largest id that can be decoded."""
        return max(self.backend.get_vocab(with_added_tokens=True).values(), default=-1) + 1

    @property
    def bos_token_id(self) -> int | None:
        """The id that begins a text, if the model has one."""
        return self._special.bos_id

    @property
    def eos_token_id(self) -> int | None:
        """The tokenizer's own end token, if the model has one."""
        return self._special.eos_ids[0] if self._special.eos_ids else None

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """Every id that ends a generation, the tokenizer's own first."""
        return self._special.eos_ids

    @cached_property
    def special_ids(self) -> frozenset[int]:
        """Ids that decoding leaves out when special tokens are skipped."""
        added = self.backend.get_added_tokens_decoder()
        return frozenset(index for index, token in added.items() if token.special)

    @cached_property
    def decoder_profile(self) -> DecoderProfile:
        """How single tokens become text, for incremental detokenising."""
        return profile_decoder(self.backend)

    @property
    def chat_template(self) -> str | None:
        """The source of the model's usual chat template, if it has one."""
        return self._templates.get("default")

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of `text`; with `add_special_tokens`, BOS and EOS where the model wants them.

        Raises BadRequest for text that is no Unicode (lone surrogates).
        """
        self._check_text(text)
        ids: list[int] = self.backend.encode(text, add_special_tokens=add_special_tokens).ids
        return ids

    def encode_batch(
        self, texts: Sequence[str], *, add_special_tokens: bool = True
    ) -> list[list[int]]:
        """`encode` of each of `texts`, on all cores."""
        for text in texts:
            self._check_text(text)
        found = self.backend.encode_batch_fast(list(texts), add_special_tokens=add_special_tokens)
        return [encoding.ids for encoding in found]

    def decode(self, ids: Iterable[int], *, skip_special_tokens: bool = True) -> str:
        """The text of `ids`; bytes that form no character become U+FFFD, unknown ids nothing."""
        text: str = self.backend.decode(list(ids), skip_special_tokens=skip_special_tokens)
        return text

    def token_text(self, token_id: int) -> str | None:
        """The token as the vocabulary spells it, or None for an id outside it."""
        return self.backend.id_to_token(token_id)

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        add_generation_prompt: bool = True,
        chat_template: str | None = None,
        tools: Sequence[Mapping[str, object]] | None = None,
        variables: Mapping[str, object] | None = None,
    ) -> str:
        """The prompt for a chat.

        `chat_template` is the source of a template, or the name of one of the model's own;
        `variables` are handed to it by name. Raises BadRequest for messages that are malformed or
        that the template rejects, and when there is no template.
        """
        template = self._template(chat_template, has_tools=tools is not None)
        return template.render(
            messages,
            add_generation_prompt=add_generation_prompt,
            tools=tools,
            variables={**self._special.named(), **(variables or {})},
        )

    def encode_chat(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        add_generation_prompt: bool = True,
        chat_template: str | None = None,
        tools: Sequence[Mapping[str, object]] | None = None,
        variables: Mapping[str, object] | None = None,
    ) -> list[int]:
        """Token ids of the prompt for a chat; BOS only where the template itself writes it."""
        prompt = self.apply_chat_template(
            messages,
            add_generation_prompt=add_generation_prompt,
            chat_template=chat_template,
            tools=tools,
            variables=variables,
        )
        return self.encode(prompt, add_special_tokens=False)

    def _template(self, wanted: str | None, *, has_tools: bool) -> ChatTemplate:
        if wanted is None:
            wanted = "tool_use" if has_tools and "tool_use" in self._templates else "default"
            if wanted not in self._templates:
                raise BadRequest(
                    "this model has no chat template: send a plain prompt, or give chat_template"
                )
        source = self._templates.get(wanted)
        if source is None:
            return ChatTemplate(wanted)
        if wanted not in self._compiled:
            self._compiled[wanted] = ChatTemplate(source)
        return self._compiled[wanted]

    @staticmethod
    def _check_text(text: str) -> None:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise BadRequest(
                f"the text is not valid Unicode: lone surrogate at character {error.start}"
            ) from error
        except AttributeError as error:
            raise BadRequest(f"a prompt is a string, not {type(text).__name__}") from error
