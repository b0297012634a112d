"""A tiny random model with a tokenizer of single bytes, as one GGUF file that `LLM` loads."""

from pathlib import Path

from gguf import GGUFWriter

from tests.support.doors import CHATML, byte_tokenizer
from tests.support.tiny_models import random_weights, save_gguf, small_config

_NORMAL, _CONTROL = 1, 3


def save_tiny_llm(path: Path, *, seed: int = 0) -> Path:
    """Writes the model to `path`: three layers, 512 positions, vocabulary of 264."""
    tokenizer = byte_tokenizer()
    texts = [tokenizer.token_text(token) or "" for token in range(tokenizer.vocab_size)]
    end = tokenizer.eos_token_id
    config = small_config(vocab_size=264, eos_token_ids=(end,), bos_token_id=None)
    texts.append("ab")  # a GGUF cannot hold an empty list of merges
    texts += [f"<pad{number}>" for number in range(config.vocab_size - len(texts))]
    kinds = [_CONTROL if text.startswith("<") and len(text) > 1 else _NORMAL for text in texts]

    def add_tokenizer(writer: GGUFWriter) -> None:
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("gpt-2")
        writer.add_token_list(texts)
        writer.add_token_types(kinds)
        writer.add_token_merges(["a b"])
        writer.add_chat_template(CHATML)

    save_gguf(path, config, random_weights(config, seed=seed), extra=add_tokenizer)
    return path
