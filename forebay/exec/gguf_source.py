"""A model in a GGUF file: its tensors under their Hugging Face names.

Quantised tensors are widened to float32 by `gguf.dequantize`. GGUF files of architecture `llama`
(Llama, SmolLM2, Mistral) hold the rows of queries and keys interleaved; they are put back into
the order of halves, which `rope.py` rotates.
"""

import re
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch
from gguf import GGMLQuantizationType, dequantize
from torch import Tensor

from forebay.errors import ModelError
from forebay.exec.gguf_config import read_gguf_config
from forebay.exec.gguf_file import GgufFile
from forebay.exec.model_config import Architecture

_TOP = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
_IN_LAYER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_OUT_OF_LAYER = {gguf: hf for hf, gguf in _IN_LAYER.items()}
_OUT_OF_TOP = {gguf: hf for hf, gguf in _TOP.items()}
_LAYER_NAME = re.compile(r"(model\.layers|blk)\.(\d+)\.(.+)\.(weight|bias)")
# Elements widened at a time: numpy's temporaries then stay in cache (3 times faster than 16 rows).
_CHUNK_ELEMENTS = 1 << 17
_ROWS_PER_GROUP = 16  # of gguf.quants


class GgufSource:
    """The model in the GGUF file at `path`.

    Raises ModelError, here and while reading tensors, for anything broken or not computed.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = GgufFile(path)
        self.config = read_gguf_config(self._file)

    def names(self) -> Iterable[str]:
        """Hugging Face names of all tensors; a name that has none stays as it is in the file."""
        return [_hf_name(name) for name in self._file.tensors]

    def describe(self, name: str) -> str:
        """Where tensor `name` is, for error messages."""
        return f"{self.path}: tensor {_gguf_name(name)}"

    def shape(self, name: str) -> tuple[int, ...] | None:
        """Shape of tensor `name`, or None when the file has no such tensor."""
        tensor = self._file.tensors.get(_gguf_name(name))
        return None if tensor is None else tensor.shape

    def read(self, name: str) -> Tensor:
        """Tensor `name` in float32, of the shape that `shape` tells."""
        tensor = self._file.tensors[_gguf_name(name)]
        try:
            values = _widen(tensor.data, tensor.kind, tensor.shape)
        except NotImplementedError as error:
            raise ModelError(
                f"{self.describe(name)} has type {tensor.kind.name}, which is not "
                f"supported; use a file of type F16, Q8_0, Q4_0, Q4_1, Q4_K or Q6_K"
            ) from error
        return self._in_halves(name, torch.from_numpy(values))

    def _in_halves(self, name: str, values: Tensor) -> Tensor:
        if self.config.architecture is not Architecture.LLAMA:
            return values
        if ".self_attn.q_proj." in name:
            num_heads = self.config.num_heads
        elif ".self_attn.k_proj." in name:
            num_heads = self.config.num_kv_heads
        else:
            return values
        pairs = values.view(num_heads, self.config.head_dim // 2, 2, *values.shape[1:])
        return pairs.transpose(1, 2).reshape(values.shape)


def _widen(
    data: np.ndarray, kind: GGMLQuantizationType, shape: tuple[int, ...]
) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    """`data` of type `kind` as writable float32 of `shape`."""
    if kind in (GGMLQuantizationType.F32, GGMLQuantizationType.F16):
        return data.astype(np.float32).reshape(shape)
    if kind in _INTEGERS:
        raise NotImplementedError
    # A block never crosses a row, so rows may be joined before they are handed over in groups.
    rows = data.reshape(-1, data.shape[-1])
    joined = _joined_rows(len(rows), shape[-1])
    widened = dequantize(rows.reshape(len(rows) // joined, -1), kind)
    return widened.reshape(shape)


def _joined_rows(num_rows: int, row_size: int) -> int:
    joined = 1
    while num_rows % (2 * joined) == 0 and (
        2 * joined * row_size * _ROWS_PER_GROUP <= _CHUNK_ELEMENTS
    ):
        joined *= 2
    return joined


_INTEGERS = tuple(
    kind for kind in GGMLQuantizationType if kind.name in ("I8", "I16", "I32", "I64", "F64")
)


def _gguf_name(hf_name: str) -> str:
    if hf_name in _TOP:
        return _TOP[hf_name]
    match = _LAYER_NAME.fullmatch(hf_name)
    if match is None or match[3] not in _IN_LAYER:
        return hf_name
    return f"blk.{match[2]}.{_IN_LAYER[match[3]]}.{match[4]}"


def _hf_name(gguf_name: str) -> str:
    if gguf_name in _OUT_OF_TOP:
        return _OUT_OF_TOP[gguf_name]
    match = _LAYER_NAME.fullmatch(gguf_name)
    if match is None or match[3] not in _OUT_OF_LAYER:
        return gguf_name
    return f"model.layers.{match[2]}.{_OUT_OF_LAYER[match[3]]}.{match[4]}"
