"""A prefix index that knows every copy of equal content, as vLLM's does."""

from forebay.core.policies import Duplicates, Rules
from forebay.core.prefix import PrefixIndex
from forebay.units import BlockId


class AllCopies(PrefixIndex):
    """The first copy published is found; when it is given away, the next one is."""

    def __init__(self) -> None:
        super().__init__()
        self._later: dict[bytes, list[BlockId]] = {}

    def publish(self, block: BlockId, digest: bytes) -> bool:
        """Makes a filled block findable; False if it already is."""
        if block in self._hash_of:
            return False
        if not super().publish(block, digest):
            self._later.setdefault(digest, []).append(block)
            self._hash_of[block] = digest
        return True

    def forget(self, block: BlockId) -> None:
        """The block's content is about to be overwritten; other copies stay."""
        digest = self._hash_of.get(block)
        later = self._later.get(digest, []) if digest is not None else []
        if digest is None or not later:
            super().forget(block)
            return
        if self._by_hash[digest] == block:
            self._by_hash[digest] = later.pop(0)
        else:
            later.remove(block)
        del self._hash_of[block]
        if not later:
            del self._later[digest]


def build_index(rules: Rules) -> PrefixIndex:
    """The index that the rules ask for."""
    return AllCopies() if rules.duplicates is Duplicates.ALL else PrefixIndex()
