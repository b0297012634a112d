"""Chained hashes of full blocks: equal hash means equal tokens in all positions up to its end.

Source: the scheme of vLLM 0.25.1 (hash of parent hash, block tokens and salt); ours is BLAKE2b
with 16-byte digests over 4-byte little-endian token ids.
"""

import array
import sys
from collections.abc import Sequence
from hashlib import blake2b

DIGEST_BYTES = 16


def root_hash(fingerprint: str, salt: str = "") -> bytes:
    """The parent of a first block: separates models, KV layouts and tenants from each other."""
    digest = blake2b(digest_size=DIGEST_BYTES)
    for part in (fingerprint, salt):
        encoded = part.encode()
        digest.update(len(encoded).to_bytes(8, "little"))
        digest.update(encoded)
    return digest.digest()


def chain_hash(parent: bytes, token_ids: Sequence[int]) -> bytes:
    """The hash of a block with `token_ids` that follows the block with hash `parent`."""
    packed = array.array("I", token_ids)
    if sys.byteorder == "big":
        packed.byteswap()
    return blake2b(parent + packed.tobytes(), digest_size=DIGEST_BYTES).digest()


def prompt_hashes(root: bytes, token_ids: Sequence[int], block_size: int) -> tuple[bytes, ...]:
    """Chained hashes of all full blocks of a prompt, in order."""
    hashes = []
    parent = root
    for start in range(0, len(token_ids) - block_size + 1, block_size):
        parent = chain_hash(parent, token_ids[start : start + block_size])
        hashes.append(parent)
    return tuple(hashes)
