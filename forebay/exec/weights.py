"""A model's weights in memory, fused for few large products, every shape checked as it is read.

A product is built from its weight as soon as that is read, and may keep a copy in a layout of its
own; the weight as read is then let go.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from forebay.errors import ModelError
from forebay.exec.model_config import AttentionBias, DType, ModelConfig, product_shapes
from forebay.exec.model_source import ModelSource

_TORCH_DTYPES = {
    DType.FLOAT32: torch.float32,
    DType.BFLOAT16: torch.bfloat16,
    DType.FLOAT16: torch.float16,
}
_ROPE_FREQ_FACTORS = "rope_freqs.weight"
_HEAD = "lm_head.weight"
_EMBEDDING = "model.embed_tokens.weight"
# Computed from the configuration here; old checkpoints carry it along.
_IGNORED_SUFFIX = ".rotary_emb.inv_freq"


class Linear(Protocol):
    """A matrix product."""

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None, /) -> Tensor:
        """`x` (num_rows, in) times `weight` (out, in) transposed, plus `bias` (out,) if any."""


class Product(Protocol):
    """A matrix product whose weight and bias are fixed."""

    def __call__(self, x: Tensor, /) -> Tensor:
        """(num_rows, out) for `x` (num_rows, in)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Products:
    """How matrix products are computed.

    `prepare` is given each weight once, as it is loaded; what it returns, in whatever layout, is
    what `linear` gets as `weight`. By default torch's own product, whose last bits may change
    with the number of rows.
    """

    linear: Linear = F.linear
    prepare: Callable[[Tensor], Tensor] = lambda weight: weight

    def of(self, weight: Tensor, bias: Tensor | None) -> Product:
        """The product with `weight` (out, in) and `bias` (out,)."""
        linear, prepared = self.linear, self.prepare(weight)
        return lambda x: linear(x, prepared, bias)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LayerWeights:
    """One layer. q, k and v are one product, stacked in this order, and so are gate and up."""

    attn_norm: Tensor
    qkv: Product
    qk_norm: Tensor | None
    """(num_heads + num_kv_heads, head_dim): the norm weight of each query head, then key head."""
    output: Product
    mlp_norm: Tensor
    gate_up: Product
    down: Product


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DecoderWeights:
    """All weights of one model; a tied `lm_head` is built from the embedding."""

    embedding: Tensor
    layers: tuple[LayerWeights, ...]
    final_norm: Tensor
    lm_head: Product
    rope_freq_factors: Tensor | None
    """(head_dim / 2,) divisors of the RoPE frequencies, which GGUF files of Llama 3 bring."""


def probe_weights(config: ModelConfig, *, dtype: DType, device: torch.device) -> Iterator[Tensor]:
    """A random weight for each shape of product in the model, to try products out on."""
    generator = torch.Generator().manual_seed(0)
    for shape in sorted(set(product_shapes(config))):
        yield torch.randn(shape, generator=generator).to(device, torch_dtype(dtype))


def torch_dtype(dtype: DType) -> torch.dtype:
    """The torch type of `dtype`."""
    return _TORCH_DTYPES[dtype]


def load_weights(
    source: ModelSource,
    *,
    dtype: DType,
    device: torch.device,
    products: Products,
) -> DecoderWeights:
    """Read all tensors of `source`, holding about one product's besides the result.

    Raises ModelError for a tensor that is missing, misshapen or unknown to the model.
    """
    return _Loader(source, torch_dtype(dtype), device, products).load()


class _Loader:
    def __init__(
        self,
        source: ModelSource,
        dtype: torch.dtype,
        device: torch.device,
        products: Products,
    ) -> None:
        self._products = products
        self._source = source
        self._config: ModelConfig = source.config
        self._dtype = dtype
        self._device = device
        self._unused = set(source.names())

    def load(self) -> DecoderWeights:
        config = self._config
        embedding_shape = (config.vocab_size, config.hidden_size)
        embedding = self._stack([_EMBEDDING], [embedding_shape])
        layers = tuple(self._layer(index) for index in range(config.num_layers))
        final_norm = self._stack(["model.norm.weight"], [(config.hidden_size,)])
        if config.tie_word_embeddings:
            self._unused.discard(_HEAD)
            head = embedding
        else:
            head = self._stack([_HEAD], [embedding_shape])
        weights = DecoderWeights(
            embedding=embedding,
            layers=layers,
            final_norm=final_norm,
            lm_head=self._products.of(head, None),
            rope_freq_factors=self._rope_freq_factors(),
        )
        self._refuse_unused()
        return weights

    def _layer(self, index: int) -> LayerWeights:
        config = self._config
        prefix = f"model.layers.{index}."
        hidden, mid = config.hidden_size, config.intermediate_size
        qkv = [prefix + f"self_attn.{part}_proj" for part in "qkv"]
        qkv_sizes = (config.q_size, config.kv_size, config.kv_size)
        output, down = [prefix + "self_attn.o_proj"], [prefix + "mlp.down_proj"]
        gate_up = [prefix + f"mlp.{part}_proj" for part in ("gate", "up")]
        has_qkv_bias = config.attention_bias is not AttentionBias.NONE
        has_output_bias = config.attention_bias is AttentionBias.QKV_AND_OUTPUT
        return LayerWeights(
            attn_norm=self._stack([prefix + "input_layernorm.weight"], [(hidden,)]),
            qkv=self._product(qkv, qkv_sizes, hidden, has_qkv_bias),
            qk_norm=self._qk_norm(prefix) if config.qk_norm else None,
            output=self._product(output, (hidden,), config.q_size, has_output_bias),
            mlp_norm=self._stack([prefix + "post_attention_layernorm.weight"], [(hidden,)]),
            gate_up=self._product(gate_up, (mid, mid), hidden, config.mlp_bias),
            down=self._product(down, (hidden,), mid, config.mlp_bias),
        )

    def _product(
        self, names: Sequence[str], rows: Sequence[int], width: int, has_bias: bool
    ) -> Product:
        shapes = [(size, width) for size in rows]
        weight = self._stack([f"{name}.weight" for name in names], shapes)
        bias = None
        if has_bias:
            bias = self._stack([f"{name}.bias" for name in names], [(size,) for size in rows])
        return self._products.of(weight, bias)

    def _qk_norm(self, prefix: str) -> Tensor:
        head = (self._config.head_dim,)
        query = self._stack([prefix + "self_attn.q_norm.weight"], [head])
        key = self._stack([prefix + "self_attn.k_norm.weight"], [head])
        queries = query.expand(self._config.num_heads, -1)
        return torch.cat([queries, key.expand(self._config.num_kv_heads, -1)])

    def _rope_freq_factors(self) -> Tensor | None:
        if self._source.shape(_ROPE_FREQ_FACTORS) is None:
            return None
        shape = (self._config.head_dim // 2,)
        self._check(_ROPE_FREQ_FACTORS, shape)
        return self._source.read(_ROPE_FREQ_FACTORS).to(torch.float32)

    def _stack(self, names: Sequence[str], shapes: Sequence[tuple[int, ...]]) -> Tensor:
        """The tensors `names` one below the other."""
        # Checked first: a broken size must not reserve terabytes.
        for name, shape in zip(names, shapes, strict=True):
            self._check(name, shape)
        rows = sum(shape[0] for shape in shapes)
        stacked = torch.empty((rows, *shapes[0][1:]), dtype=self._dtype, device=self._device)
        start = 0
        for name, shape in zip(names, shapes, strict=True):
            stacked[start : start + shape[0]].copy_(self._source.read(name))
            start += shape[0]
        return stacked

    def _check(self, name: str, shape: tuple[int, ...]) -> None:
        found = self._source.shape(name)
        if found is None:
            raise ModelError(f"{self._source.describe(name)} is missing")
        if found != shape:
            raise ModelError(
                f"{self._source.describe(name)} has shape {list(found)}, but the configuration "
                f"asks for {list(shape)}"
            )
        self._unused.discard(name)

    def _refuse_unused(self) -> None:
        unused = sorted(name for name in self._unused if not name.endswith(_IGNORED_SUFFIX))
        if unused:
            raise ModelError(
                f"{self._source.describe(unused[0])} is not part of a "
                f"{self._config.architecture.value} model as configured, so its outputs would be "
                f"wrong without it ({len(unused)} such)"
            )
