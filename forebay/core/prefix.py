"""The prefix cache: chained block hashes to blocks.

The index holds nothing: it remembers which content a block has, so that a free block can be
revived. A block leaves the index when the pool gives it away. Of two blocks with equal content
the first published is found; the other stays unpublished.
"""

from collections.abc import Sequence

from forebay.units import BlockId


class PrefixIndex:
    """Which block has which content."""

    def __init__(self) -> None:
        self._by_hash: dict[bytes, BlockId] = {}
        self._hash_of: dict[BlockId, bytes] = {}

    def __len__(self) -> int:
        return len(self._hash_of)

    def publish(self, block: BlockId, digest: bytes) -> bool:
        """Makes a filled block findable; False if equal content already is."""
        if digest in self._by_hash or block in self._hash_of:
            return False
        self._by_hash[digest] = block
        self._hash_of[block] = digest
        return True

    def forget(self, block: BlockId) -> None:
        """The block's content is about to be overwritten. Unpublished blocks are ignored."""
        digest = self._hash_of.pop(block, None)
        if digest is not None:
            del self._by_hash[digest]

    def is_published(self, block: BlockId) -> bool:
        """Whether the block can be found."""
        return block in self._hash_of

    def probe(self, digests: Sequence[bytes], max_blocks: int) -> list[BlockId]:
        """The blocks of the longest known prefix, at most `max_blocks`."""
        found = []
        for digest in digests[: max(0, max_blocks)]:
            block = self._by_hash.get(digest)
            if block is None:
                break
            found.append(block)
        return found
