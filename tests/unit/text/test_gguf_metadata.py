"""The fast reader of GGUF metadata agrees with the gguf package and survives broken files."""

import struct
from pathlib import Path
from typing import Any

import gguf
import pytest

from forebay.errors import ModelError
from forebay.text.gguf_metadata import GgufMetadata, read_gguf_metadata


@pytest.fixture
def every_type(tmp_path: Path) -> Path:
    path = tmp_path / "all.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    for name, bits in (("uint8", 200), ("int8", -5), ("uint16", 60000), ("int16", -3)):
        getattr(writer, f"add_{name}")(f"x.{name}", bits)
    writer.add_uint32("x.uint32", 4_000_000_000)
    writer.add_int32("x.int32", -7)
    writer.add_uint64("x.uint64", 1 << 60)
    writer.add_int64("x.int64", -(1 << 60))
    writer.add_float32("x.float32", 0.25)
    writer.add_float64("x.float64", 0.1)
    writer.add_bool("x.bool", True)
    writer.add_string("x.string", "ünï 你好")
    writer.add_array("x.texts", ["", "a", "你好", "\n"])
    writer.add_array("x.ints", [3, -1, 2])
    writer.add_array("x.floats", [0.5, -2.0])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


def _contents(metadata: GgufMetadata) -> dict[str, Any]:
    return metadata._values


def test_every_value_type_equals_what_the_gguf_package_reads(every_type: Path) -> None:
    fields = gguf.GGUFReader(every_type).fields
    expected = {k: f.contents() for k, f in fields.items() if not k.startswith("GGUF.")}
    assert _contents(read_gguf_metadata(every_type)) == expected
    assert len(expected) == 16


def test_typed_getters_give_none_for_absent_and_refuse_other_types(every_type: Path) -> None:
    metadata = read_gguf_metadata(every_type)
    assert metadata.text("x.string") == "ünï 你好"
    assert metadata.flag("x.bool") is True
    assert metadata.number("x.uint64") == 1 << 60
    assert metadata.texts("x.texts") == ["", "a", "你好", "\n"]
    assert metadata.numbers("x.ints") == [3, -1, 2]
    assert metadata.reals("x.ints") == [3.0, -1.0, 2.0]
    assert metadata.reals("x.floats") == [0.5, -2.0]
    assert "x.bool" in metadata
    assert "y" not in metadata
    for getter in ("text", "flag", "number", "texts", "numbers", "reals"):
        assert getattr(metadata, getter)("absent") is None
        wrong = "x.bool" if getter not in ("flag", "texts") else "x.ints"
        with pytest.raises(ModelError, match=rf"{wrong} should be"):
            getattr(metadata, getter)(wrong)


def test_a_file_cut_anywhere_is_a_clear_error(every_type: Path, tmp_path: Path) -> None:
    whole = every_type.read_bytes()
    cut = tmp_path / "cut.gguf"
    for size in range(4, len(whole), 7):
        cut.write_bytes(whole[:size])
        with pytest.raises(ModelError, match="not a sound GGUF file: it ends at byte"):
            read_gguf_metadata(cut)


def test_an_absurd_count_allocates_nothing(tmp_path: Path) -> None:
    key = struct.pack("<Q", 1) + b"k"
    array = struct.pack("<IIQ", 9, 4, 1 << 50)
    path = tmp_path / "huge.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + key + array)
    with pytest.raises(ModelError, match="says it goes on to"):
        read_gguf_metadata(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not a sound GGUF file: it starts with"),
        (b"PK\x03\x04zip", "not a sound GGUF file: it starts with"),
        (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "version 1"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "version 50331648"),
        (
            b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"k" + struct.pack("<I", 99),
            "unknown type 99",
        ),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"\xff" + struct.pack("<IB", 0, 1), "codec"),
    ],
)
def test_files_of_other_kinds_are_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=message):
        read_gguf_metadata(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"cannot read .*nowhere\.gguf"):
        read_gguf_metadata(tmp_path / "nowhere.gguf")


def test_arrays_within_arrays_without_end_are_refused(tmp_path: Path) -> None:
    nested = struct.pack("<IQ", 9, 1) * 20_000
    path = tmp_path / "deep.gguf"
    key = struct.pack("<Q", 1) + b"k"
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + key + struct.pack("<I", 9) + nested)
    with pytest.raises(ModelError, match="not a sound GGUF file"):
        read_gguf_metadata(path)


@pytest.mark.parametrize(
    ("values", "tensors", "said"),
    [
        ([("general.alignment", 0)], [], "alignment is 0"),
        ([("a", 1), ("a", 2)], [], "metadata a twice"),
        ([], [("w", 1), ("w", 1)], "tensor w twice"),
        ([], [("w", 0)], "tensor w has 0 dimensions"),
        ([], [("w", 5)], "tensor w has 5 dimensions"),
    ],
)
def test_a_head_that_contradicts_itself_is_refused(
    values: list[tuple[str, int]], tensors: list[tuple[str, int]], said: str, tmp_path: Path
) -> None:
    def text(string: str) -> bytes:
        return struct.pack("<Q", len(string)) + string.encode()

    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(values))
    for key, number in values:
        head += text(key) + struct.pack("<II", 4, number)
    for name, num_dimensions in tensors:
        head += text(name) + struct.pack("<I", num_dimensions)
        head += struct.pack(f"<{num_dimensions}QIQ", *[4] * num_dimensions, 0, 0)
    path = tmp_path / "odd.gguf"
    path.write_bytes(head)
    with pytest.raises(ModelError, match=said):
        read_gguf_metadata(path)
