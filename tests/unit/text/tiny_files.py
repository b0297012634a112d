"""Small tokenizers of both kinds, as GGUF files that a test writes and a few lines describe."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from tests.support.strings import make_strings

# The last holds characters outside the byte-level alphabet, and one inside that is no ASCII.
CONTROLS = ("<|end|>", "<|start|>", "<pad 你é>")
USER_DEFINED = "<think>"
_LLAMA = {"context_length": 64, "embedding_length": 8, "block_count": 1, "feed_forward_length": 8}

NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = 1, 2, 3, 4, 5, 6


def write_gguf(path: Path, arrays: Mapping[str, list[Any]], **keys: Any) -> Path:
    """A GGUF without tensors. `keys` are `tokenizer.ggml.*`; None leaves a key out."""
    writer = gguf.GGUFWriter(path, "llama")
    for name, value in _LLAMA.items():
        writer.add_uint32(f"llama.{name}", value)
    writer.add_uint32("llama.attention.head_count", 1)
    writer.add_float32("llama.attention.layer_norm_rms_epsilon", 1e-5)
    chat_template = keys.pop("chat_template", None)
    if chat_template is not None:
        writer.add_chat_template(chat_template)
    for name, items in arrays.items():
        writer.add_array(f"tokenizer.ggml.{name}", items)
    for name, value in keys.items():
        if isinstance(value, bool):
            writer.add_bool(f"tokenizer.ggml.{name}", value)
        elif isinstance(value, int):
            writer.add_uint32(f"tokenizer.ggml.{name}", value)
        elif value is not None:
            writer.add_string(f"tokenizer.ggml.{name}", value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


def byte_level_arrays(num_tokens: int = 900) -> dict[str, list[Any]]:
    """Vocabulary and merges trained on a part of the corpus; control tokens come first."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=num_tokens,
        special_tokens=[*CONTROLS, USER_DEFINED],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(make_strings(900), trainer)
    tokens = [tokenizer.id_to_token(index) for index in range(tokenizer.get_vocab_size())]
    state = tokenizer.model.__getstate__()
    merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in _merges(state)]
    types = [CONTROL if t in CONTROLS else USER if t == USER_DEFINED else NORMAL for t in tokens]
    return {"tokens": tokens, "token_type": types, "merges": merges}


def _merges(state: bytes) -> list[Any]:
    import json

    return list(json.loads(state)["merges"])


def sentencepiece_arrays() -> dict[str, list[Any]]:
    """A vocabulary as SentencePiece trains it: roles, bytes, then pieces by falling score."""
    roles = [("<unk>", UNKNOWN), ("<s>", CONTROL), ("</s>", CONTROL), (USER_DEFINED, USER)]
    single = [(f"<0x{byte:02X}>", BYTE) for byte in range(256)]
    merged = ["▁t", "▁h", "el", "lo", "▁hel", "▁hello", "he", "in", "▁a", "▁the", "er", "on", "▁▁"]
    merged += ["ing", "aa", "aaa", "▁▁▁▁", "ло", "▁М", "你好", "12"]
    letters = ["▁", *"etaoinshrdlucmfwypvbgkqjxzTIAMеоаилстМв你好世界1234567890.,'é"]
    pieces = [(text, NORMAL) for text in [*merged, *letters]]
    entries = [*roles, *single, *pieces]
    num_fixed = len(roles) + len(single)
    scores = [0.0] * num_fixed + [-float(place) for place in range(len(pieces))]
    return {
        "tokens": [text for text, _ in entries],
        "token_type": [kind for _, kind in entries],
        "scores": scores,
    }
