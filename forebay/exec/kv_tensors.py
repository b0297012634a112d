"""The memory behind the KV cache: a pool of blocks on the device, and one on the host for swap.

All layers of one block lie together, `(num_layers, 2, num_kv_heads, block_size * head_dim)`, so
that a swap or a copy-on-write moves one contiguous piece, and so that a layer's keys and values of
a block are neighbours when attention reads them. Keys are dimension-major inside a block and
values key-major: attention then scores 16 keys with one load (`paged_attention_kernel`).
"""

import contextlib
import mmap
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from forebay.errors import CapacityError, InvariantError
from forebay.exec.fused import write_kv


@dataclass(frozen=True, slots=True, kw_only=True)
class KvLayout:
    """The sizes that make a block."""

    num_layers: int
    num_kv_heads: int
    head_dim: int
    block_size: int
    dtype: torch.dtype = torch.float32

    @property
    def block_shape(self) -> tuple[int, int, int, int]:
        """Layers; keys, then values; heads; elements of one head's block."""
        return (self.num_layers, 2, self.num_kv_heads, self.block_size * self.head_dim)

    @property
    def block_bytes(self) -> int:
        """Bytes of one block, keys and values of all layers."""
        elements = 2 * self.num_layers * self.num_kv_heads * self.block_size * self.head_dim
        return elements * self.dtype.itemsize


class KvTensors:
    """Both pools, allocated and touched when made, so that no request pays for first use."""

    def __init__(
        self,
        layout: KvLayout,
        *,
        num_blocks: int,
        num_host_blocks: int = 0,
        device: torch.device | str = "cpu",
    ) -> None:
        """Raises CapacityError when the memory cannot be had."""
        self.layout = layout
        self.num_blocks = num_blocks
        self.num_host_blocks = num_host_blocks
        self.device = torch.device(device)
        self._pool = _allocate(num_blocks, layout, self.device)
        self._host = _allocate(num_host_blocks, layout, torch.device("cpu"))
        if self.device.type == "cuda" and num_host_blocks > 0:
            # Only pinned memory can be copied in the order of the compute stream.
            self._host = self._host.pin_memory()
        block = (num_blocks, layout.num_layers, layout.num_kv_heads)
        keys = self._pool[:, :, 0].view(*block, layout.head_dim, layout.block_size)
        values = self._pool[:, :, 1].view(*block, layout.block_size, layout.head_dim)
        self._keys: tuple[torch.Tensor, ...] = keys.transpose(-1, -2).unbind(1)
        self._values: tuple[torch.Tensor, ...] = values.unbind(1)
        # Token-first views: indexing them by (block, offset) reaches one token's (Hkv, D).
        self._key_slots = tuple(layer.transpose(1, 2) for layer in self._keys)
        self._value_slots = tuple(layer.transpose(1, 2) for layer in self._values)

    def keys(self, layer: int) -> torch.Tensor:
        """One layer's keys, a view: (num_blocks, num_kv_heads, block_size, head_dim)."""
        return self._keys[layer]

    def values(self, layer: int) -> torch.Tensor:
        """One layer's values, a view: (num_blocks, num_kv_heads, block_size, head_dim)."""
        return self._values[layer]

    def write(self, layer: int, k: torch.Tensor, v: torch.Tensor, slots: torch.Tensor) -> None:
        """Stores new keys and values (T, num_kv_heads, head_dim) at `slots` (T,) int64.

        A slot is `block * block_size + offset`.
        """
        if write_kv(self._keys[layer], self._values[layer], k, v, slots):
            return
        blocks = torch.div(slots, self.layout.block_size, rounding_mode="floor")
        places = (blocks, slots - blocks * self.layout.block_size)
        self._key_slots[layer].index_put_(places, k)
        self._value_slots[layer].index_put_(places, v)

    def copy_blocks(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Copies device blocks to device blocks, pair by pair in order (copy-on-write)."""
        _copy(self._pool, sources, self._pool, targets)

    def swap_out(self, blocks: Sequence[int], host_slots: Sequence[int]) -> None:
        """Copies device blocks to the host pool, in order with the device's compute."""
        _copy(self._pool, blocks, self._host, host_slots)

    def swap_in(self, host_slots: Sequence[int], blocks: Sequence[int]) -> None:
        """Copies host blocks to the device pool, in order with the device's compute."""
        _copy(self._host, host_slots, self._pool, blocks)

    def measure_copy_bytes_per_s(self, num_bytes: int = 64 << 20) -> float:
        """The rate at which blocks move between the pools, by copying some that hold nothing yet.

        Call it before the first request: it overwrites the first host slots. Without a host pool
        the answer is the rate within the device pool.
        """
        target = self._host if self.num_host_blocks > 0 else self._pool
        wanted = max(1, num_bytes // self.layout.block_bytes)
        count = min(wanted, self.num_blocks, target.shape[0])
        blocks = list(range(count))
        best = float("inf")
        for _ in range(3):
            started = time.perf_counter()
            _copy(self._pool, blocks, target, blocks[::-1])
            if self.device.type == "cuda":
                torch.cuda.synchronize(self.device)
            best = min(best, time.perf_counter() - started)
        return count * self.layout.block_bytes / best


def _copy(
    source: torch.Tensor, from_blocks: Sequence[int], target: torch.Tensor, to_blocks: Sequence[int]
) -> None:
    """One contiguous copy a block; torch splits each among its threads.

    Copies are ordered by the current stream, so `non_blocking` needs no event: whoever reads the
    target on the device comes later in that stream, and the host never reads its pool.
    """
    if len(from_blocks) != len(to_blocks):
        raise InvariantError(f"{len(from_blocks)} blocks cannot go to {len(to_blocks)} places")
    for one, other in zip(from_blocks, to_blocks, strict=True):
        # An index below zero would silently count from the end.
        if one < 0 or other < 0:
            raise InvariantError(f"no such block: {one} to {other}")
        target[other].copy_(source[one], non_blocking=True)


def _allocate(num_blocks: int, layout: KvLayout, device: torch.device) -> torch.Tensor:
    """A zeroed pool. Zeroed, for garbage that is not a number must never meet a weight of zero."""
    shape = (num_blocks, *layout.block_shape)
    try:
        if device.type != "cpu" or num_blocks == 0:
            return torch.zeros(shape, dtype=layout.dtype, device=device)
        return _allocate_host(num_blocks * layout.block_bytes, layout.dtype).view(shape)
    except (RuntimeError, OSError, MemoryError) as error:
        size = num_blocks * layout.block_bytes / 2**30
        raise CapacityError(
            f"no memory for a KV pool of {num_blocks} blocks ({size:.2f} GiB) on {device}: "
            "make it or the swap space smaller"
        ) from error


def _allocate_host(num_bytes: int, dtype: torch.dtype) -> torch.Tensor:
    """Memory in huge pages where the system grants them: a block spans dozens of small ones."""
    memory = mmap.mmap(-1, num_bytes)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        # A system without huge pages refuses; small ones do.
        with contextlib.suppress(OSError):
            memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=dtype).zero_()
