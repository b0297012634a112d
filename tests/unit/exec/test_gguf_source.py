"""GGUF files: every supported type by an independent formula, and what broken files say."""

import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from gguf import GGUFWriter, quants

from forebay.errors import ModelError
from forebay.exec.decoder import load_decoder
from forebay.exec.gguf_file import GgufFile
from forebay.exec.gguf_source import GgufSource
from forebay.exec.model_config import Architecture, AttentionBias
from tests.support.tiny_models import random_weights, save_gguf, small_config

_EMBEDDING = "model.embed_tokens.weight"
_COLUMNS = 512


def _f16(data: bytes) -> float:
    return struct.unpack("<e", data)[0]


def _q8_0(b: bytes) -> list[float]:
    return [_f16(b[:2]) * q for q in struct.unpack("<32b", b[2:])]


def _q4_0(b: bytes) -> list[float]:
    nibbles = [byte & 15 for byte in b[2:]] + [byte >> 4 for byte in b[2:]]
    return [_f16(b[:2]) * (q - 8) for q in nibbles]


def _q4_1(b: bytes) -> list[float]:
    nibbles = [byte & 15 for byte in b[4:]] + [byte >> 4 for byte in b[4:]]
    return [_f16(b[:2]) * q + _f16(b[2:4]) for q in nibbles]


def _q4_k(b: bytes) -> list[float]:
    """Eight groups of 32: 6-bit scales and minimums packed in 12 bytes, nibbles by pairs."""
    scale, minimum, packed, nibbles = _f16(b[:2]), _f16(b[2:4]), b[4:16], b[16:]
    out = []
    for group in range(8):
        if group < 4:
            s, m = packed[group] & 63, packed[group + 4] & 63
        else:
            s = (packed[group + 4] & 15) | (packed[group - 4] >> 6 << 4)
            m = (packed[group + 4] >> 4) | (packed[group] >> 6 << 4)
        part = nibbles[group // 2 * 32 : group // 2 * 32 + 32]
        values = [byte >> 4 if group % 2 else byte & 15 for byte in part]
        out += [scale * s * q - minimum * m for q in values]
    return out


def _q6_k(b: bytes) -> list[float]:
    """Sixteen groups of 16 with 8-bit scales; 4 low bits, then 2 high bits, of each value."""
    low, high, scales, d = b[:128], b[128:192], struct.unpack("<16b", b[192:208]), _f16(b[208:])
    out = []
    for at in range(256):
        half, inside = divmod(at, 128)
        quarter, column = divmod(inside, 32)
        byte = low[half * 64 + quarter % 2 * 32 + column]
        four = byte >> 4 if quarter >= 2 else byte & 15
        two = high[half * 32 + column] >> (2 * quarter) & 3
        out.append(d * scales[at // 16] * ((four | two << 4) - 32))
    return out


_BLOCKS: dict[Kind, tuple[int, tuple[int, ...], Callable[[bytes], list[float]]]] = {
    # bytes of a block, where its f16 scales are, what it means
    Kind.Q8_0: (34, (0,), _q8_0),
    Kind.Q4_0: (18, (0,), _q4_0),
    Kind.Q4_1: (20, (0, 2), _q4_1),
    Kind.Q4_K: (144, (0, 2), _q4_k),
    Kind.Q6_K: (210, (208,), _q6_k),
}


def _save_with_embedding(path: Path, data: np.ndarray, kind: Kind) -> None:
    """A small model whose embedding is stored as `data` says."""
    config = small_config(hidden_size=_COLUMNS, vocab_size=data.shape[0], num_layers=1)
    weights = random_weights(config)
    del weights[_EMBEDDING]

    def add(writer: GGUFWriter) -> None:
        writer.add_tensor("token_embd.weight", data, raw_dtype=kind)

    save_gguf(path, config, weights, extra=add)


@pytest.mark.parametrize("kind", _BLOCKS)
def test_quantized_blocks_equal_the_formula(kind: Kind, tmp_path: Path) -> None:
    size, scales_at, meaning = _BLOCKS[kind]
    blocks_per_row = _COLUMNS // (256 if size > 100 else 32)
    random = np.random.default_rng(5)
    raw = random.integers(0, 256, (48 * blocks_per_row, size), dtype=np.uint8)
    for at in scales_at:
        scales = random.uniform(-0.1, 0.1, len(raw)).astype(np.float16)
        raw[:, at : at + 2] = scales.view(np.uint8).reshape(-1, 2)
    _save_with_embedding(tmp_path / "m.gguf", raw.reshape(48, -1), kind)
    found = GgufSource(tmp_path / "m.gguf").read(_EMBEDDING)
    assert found.dtype is torch.float32
    expected = torch.tensor([meaning(block.tobytes()) for block in raw], dtype=torch.float64)
    torch.testing.assert_close(found.double(), expected.view(48, -1), atol=1e-7, rtol=1e-6)


@pytest.mark.parametrize("kind", [Kind.Q5_0, Kind.Q5_1])
def test_further_types_round_trip_within_a_step(kind: Kind, tmp_path: Path) -> None:
    values = np.random.default_rng(6).uniform(-1, 1, (16, _COLUMNS)).astype(np.float32)
    _save_with_embedding(tmp_path / "m.gguf", quants.quantize(values, kind), kind)
    found = GgufSource(tmp_path / "m.gguf").read(_EMBEDDING)
    assert (found - torch.from_numpy(values)).abs().max() < 2 / 31


@pytest.mark.parametrize(
    ("kind", "torch_dtype"),
    [(Kind.F32, torch.float32), (Kind.F16, torch.float16), (Kind.BF16, torch.bfloat16)],
)
def test_float_types_are_exact(kind: Kind, torch_dtype: torch.dtype, tmp_path: Path) -> None:
    values = torch.randn(16, _COLUMNS)
    _save_with_embedding(tmp_path / "m.gguf", quants.quantize(values.numpy(), kind), kind)
    found = GgufSource(tmp_path / "m.gguf").read(_EMBEDDING)
    assert torch.equal(found, values.to(torch_dtype).float())


def test_an_unsupported_type_is_named_with_its_tensor(tmp_path: Path) -> None:
    data = np.zeros((16, _COLUMNS // 32 * 40), dtype=np.uint8)
    _save_with_embedding(tmp_path / "m.gguf", data, Kind.Q8_1)
    with pytest.raises(ModelError, match=r"token_embd\.weight has type Q8_1.*not supported"):
        load_decoder(GgufSource(tmp_path / "m.gguf"), max_model_len=16)


@pytest.mark.parametrize("architecture", [Architecture.LLAMA, Architecture.QWEN2])
def test_tensors_come_back_in_hugging_face_order(
    architecture: Architecture, tmp_path: Path
) -> None:
    config = small_config(architecture=architecture)
    weights = random_weights(config)
    save_gguf(tmp_path / "m.gguf", config, weights)
    source = GgufSource(tmp_path / "m.gguf")
    assert set(source.names()) == set(weights)
    for name, expected in weights.items():
        assert source.shape(name) == tuple(expected.shape)
        assert torch.equal(source.read(name), expected), name


def test_configuration_is_read_whole(tmp_path: Path) -> None:
    config = small_config(head_dim=24, tie_word_embeddings=True)

    def add(writer: GGUFWriter) -> None:
        writer.add_eot_token_id(9)
        writer.add_token_list([f"token {index}" for index in range(3000)])

    save_gguf(tmp_path / "m.gguf", config, random_weights(config), extra=add)
    found = GgufSource(tmp_path / "m.gguf").config
    assert found.rms_norm_eps == pytest.approx(config.rms_norm_eps)
    assert found.eos_token_ids == (2, 9)
    for field in ("rope", "vocab_size", "head_dim", "num_kv_heads", "bos_token_id"):
        assert getattr(found, field) == getattr(config, field)
    assert found.tie_word_embeddings
    assert found.attention_bias is AttentionBias.NONE


def _small_file(path: Path, **changes) -> bytes:
    config = small_config(num_layers=1, vocab_size=32)
    weights = random_weights(config)
    for name, tensor in changes.pop("weights", {}).items():
        weights.pop(name)
        if tensor is not None:
            weights[name] = tensor
    save_gguf(path, config, weights, **changes)
    return path.read_bytes()


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    _small_file(path, weights={"model.layers.0.mlp.up_proj.weight": None})
    with pytest.raises(ModelError, match=r"m\.gguf: tensor blk\.0\.ffn_up\.weight is missing"):
        load_decoder(GgufSource(path), max_model_len=16)


def test_a_wrong_shape_is_named_with_both_shapes(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    _small_file(path, weights={"model.layers.0.mlp.up_proj.weight": torch.zeros(103, 64)})
    with pytest.raises(ModelError, match=r"ffn_up\.weight has shape \[103, 64\].*\[104, 64\]"):
        load_decoder(GgufSource(path), max_model_len=16)


def test_a_tensor_that_would_be_ignored_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    _small_file(path, extra=lambda w: w.add_tensor("blk.0.attn_sinks", np.ones(4, np.float32)))
    with pytest.raises(ModelError, match="attn_sinks is not part of a llama model"):
        load_decoder(GgufSource(path), max_model_len=16)


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("llama.expert_count", 8, "mixture-of-experts"),
        ("llama.rope.scaling.type", "yarn", "RoPE scaling 'yarn' is not supported"),
        ("tokenizer.ggml.bos_token_id", "one", "bos_token_id is 'one', should be a whole number"),
    ],
)
def test_metadata_that_cannot_be_served_is_named(
    key: str, value: int | str, said: str, tmp_path: Path
) -> None:
    def change(writer: GGUFWriter) -> None:
        writer.kv_data[0].pop(key, None)
        if isinstance(value, int):
            writer.add_uint32(key, value)
        else:
            writer.add_string(key, value)

    _small_file(tmp_path / "m.gguf", extra=change)
    with pytest.raises(ModelError, match=said):
        GgufSource(tmp_path / "m.gguf")


def test_an_unknown_architecture_is_named_with_the_known(tmp_path: Path) -> None:
    writer = GGUFWriter(tmp_path / "m.gguf", "falcon")
    writer.add_tensor("token_embd.weight", np.zeros((4, 4), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ModelError, match=r"'falcon' is not supported.*llama, qwen2, qwen3"):
        GgufSource(tmp_path / "m.gguf")


def test_a_file_cut_in_its_data_names_the_tensor(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    whole = _small_file(path)
    path.write_bytes(whole[:-100])
    with pytest.raises(ModelError, match=r"m\.gguf is not a sound.*tensor output\.weight goes on"):
        GgufSource(path)


def test_a_file_cut_or_changed_anywhere_never_ends_in_another_error(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    whole = _small_file(path, extra=lambda w: w.add_token_list(["a", "b"]))
    start_of_data = GgufFile(path).tensors["token_embd.weight"].offset
    random = np.random.default_rng(8)
    refused = 0
    for attempt in range(300):
        broken = bytearray(whole)
        if attempt % 3 == 0:
            broken = broken[: random.integers(0, len(whole))]
        else:
            for at in random.integers(0, start_of_data, attempt % 3):
                broken[at] = random.integers(0, 256)
        path.write_bytes(broken)
        try:
            load_decoder(GgufSource(path), max_model_len=8)
        except ModelError:
            refused += 1
    assert refused > 150


def test_what_is_no_gguf_is_said(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    for content in (b"", b"GGU", b"<html>not found</html>" * 20):
        path.write_bytes(content)
        with pytest.raises(ModelError, match=r"m\.gguf is not a sound GGUF file"):
            GgufSource(path)
    with pytest.raises(ModelError, match="cannot read"):
        GgufSource(tmp_path / "absent.gguf")
