"""The tokenizer of a Hugging Face folder: `tokenizer.json` and the small files beside it.

Read, as transformers 5.24 does: `tokenizer.json` (how text becomes tokens, BOS and EOS included:
the flags `add_bos_token` and `add_eos_token` of the config have no say beside it),
`tokenizer_config.json` and `special_tokens_map.json` (roles, chat template),
`chat_template.jinja` and `additional_chat_templates/` (before the template in the config), and
`generation_config.json` (further end tokens).
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from forebay.errors import ModelError
from forebay.text.special_tokens import LoadedTokenizer, SpecialTokens

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_ROLES = ("bos_token", "eos_token", "unk_token", "pad_token")


def load_hf_tokenizer(folder: Path) -> LoadedTokenizer:
    """Load the tokenizer in `folder`. Raises ModelError when a file is missing or broken."""
    config = _read_json(folder / "tokenizer_config.json")
    tokenizer = _load_tokenizer_json(folder / "tokenizer.json")
    texts = _role_texts(config, _read_json(folder / "special_tokens_map.json"))
    _add_missing(tokenizer, config, texts)
    special = _special_tokens(tokenizer, texts, _read_json(folder / "generation_config.json"))
    return LoadedTokenizer(
        tokenizer=tokenizer, special=special, chat_templates=_chat_templates(folder, config)
    )


def _load_tokenizer_json(path: Path) -> "Tokenizer":
    from tokenizers import Tokenizer

    if not path.is_file():
        raise ModelError(
            f"{path} is missing; a folder with only tokenizer.model must be converted first, "
            "for example with transformers' AutoTokenizer.save_pretrained"
        )
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # tokenizers raises bare Exception for any content it cannot read
        raise ModelError(f"{path} cannot be read as a tokenizer: {error}") from error
    # Both are training leftovers: a prompt must reach the engine whole and unpadded.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _read_json(path: Path) -> dict[str, object]:
    """The object in the file at `path`, empty when there is no such file."""
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} cannot be read as JSON: {error}") from error
    if not isinstance(value, dict):
        raise ModelError(f"{path} should hold a JSON object, not {type(value).__name__}")
    return value


def _token_text(value: object) -> str | None:
    """A token is written as its text, or as an object with the text in `content`."""
    if isinstance(value, Mapping):
        value = value.get("content")
    return value if isinstance(value, str) else None


def _role_texts(config: Mapping[str, object], token_map: Mapping[str, object]) -> dict[str, str]:
    found = {}
    for role in _ROLES:
        # A null in the config means "this model has none", so it must not fall through to the map.
        text = _token_text(config[role] if role in config else token_map.get(role))
        if text is not None:
            found[role] = text
    return found


def _add_missing(
    tokenizer: "Tokenizer", config: Mapping[str, object], texts: Mapping[str, str]
) -> None:
    """Register tokens that the config names and `tokenizer.json` does not, by rising id."""
    from tokenizers import AddedToken

    known = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    listed = config.get("added_tokens_decoder")
    entries = sorted(listed.items(), key=_added_token_id) if isinstance(listed, dict) else []
    for _, entry in entries:
        text = _token_text(entry)
        if text is not None and text not in known:
            flags = ("single_word", "lstrip", "rstrip", "normalized", "special")
            options = {flag: bool(entry[flag]) for flag in flags if flag in entry}
            tokenizer.add_tokens([AddedToken(text, **options)])
            known.add(text)
    for text in texts.values():
        if text not in known:
            tokenizer.add_special_tokens([AddedToken(text, normalized=False, special=True)])
            known.add(text)


def _added_token_id(entry: tuple[str, object]) -> int:
    try:
        return int(entry[0])
    except ValueError:
        raise ModelError(
            f"tokenizer_config.json: added_tokens_decoder lists {entry[0]!r}, which is no token id"
        ) from None


def _special_tokens(
    tokenizer: "Tokenizer", texts: Mapping[str, str], generation: Mapping[str, object]
) -> SpecialTokens:
    def token_id(role: str) -> int | None:
        text = texts.get(role)
        return None if text is None else tokenizer.token_to_id(text)

    more = generation.get("eos_token_id")
    listed = more if isinstance(more, list) else [more]
    ends = [token_id("eos_token"), *(item for item in listed if isinstance(item, int))]
    return SpecialTokens(
        bos_id=token_id("bos_token"),
        eos_ids=tuple(dict.fromkeys(index for index in ends if index is not None)),
        bos_token=texts.get("bos_token"),
        eos_token=texts.get("eos_token"),
        unk_token=texts.get("unk_token"),
        pad_token=texts.get("pad_token"),
    )


def _chat_templates(folder: Path, config: Mapping[str, object]) -> dict[str, str]:
    """Templates by name; files win over the config."""
    templates = {}
    stored = config.get("chat_template")
    if isinstance(stored, str):
        templates["default"] = stored
    elif isinstance(stored, list):
        for entry in stored:
            if isinstance(entry, dict) and isinstance(entry.get("template"), str):
                templates[str(entry.get("name", "default"))] = entry["template"]
    files = {"default": folder / "chat_template.jinja"}
    files |= {path.stem: path for path in (folder / "additional_chat_templates").glob("*.jinja")}
    try:
        return templates | {
            name: path.read_text(encoding="utf-8") for name, path in files.items() if path.is_file()
        }
    except (OSError, ValueError) as error:
        raise ModelError(f"a chat template in {folder} cannot be read: {error}") from error
