"""The pool: which blocks are free, who holds the others, and which is given away next.

A block is free when nobody holds it. Holders keep their blocks in a `Hold`; a request's table, a
fence and a transfer are holders. Freeing twice would need the same hold dropped twice, which
leaves it empty the first time. A free block may still be *cached*: it keeps its content until it
is taken, and a hit revives it. Uncached blocks are taken first, then cached ones, least recently
freed first, and within one hold the tail before the head.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from forebay.core.prefix import PrefixIndex
from forebay.errors import InvariantError
from forebay.units import BlockId


@dataclass(slots=True, eq=False)
class Hold:
    """Blocks held by one holder, in table order. Only `BlockPool` changes it."""

    blocks: list[BlockId] = field(default_factory=list)


class BlockPool:
    """Blocks `0 <= b < num_blocks`, each free or held. Sole owner of the hold counts."""

    def __init__(self, num_blocks: int, index: PrefixIndex) -> None:
        if num_blocks < 1:
            raise InvariantError(f"a pool needs at least one block, not {num_blocks}")
        self.num_blocks = num_blocks
        self._index = index
        self._holds = [0] * num_blocks
        self._free: OrderedDict[BlockId, None] = OrderedDict.fromkeys(
            BlockId(block) for block in range(num_blocks)
        )

    @property
    def num_free(self) -> int:
        """Blocks that `take` can hand out now, cached ones included."""
        return len(self._free)

    @property
    def num_cached(self) -> int:
        """Free blocks whose content can still be found."""
        return sum(1 for block in self._free if self._index.is_published(block))

    def num_holds(self, block: BlockId) -> int:
        """How many holds a block is in; fences and transfers count too."""
        return self._holds[block]

    def is_free(self, block: BlockId) -> bool:
        """Whether nobody holds the block."""
        return block in self._free

    def take(self, hold: Hold, count: int) -> list[BlockId]:
        """Adds `count` free blocks to the hold, evicting cached ones as needed.

        Raises: InvariantError if fewer are free; the caller asks `num_free` first.
        """
        if count > len(self._free):
            raise InvariantError(f"{count} blocks taken but only {len(self._free)} are free")
        taken = []
        for _ in range(count):
            block, _ = self._free.popitem(last=False)
            self._index.forget(block)
            self._holds[block] = 1
            taken.append(block)
        hold.blocks.extend(taken)
        return taken

    def share(self, hold: Hold, blocks: Sequence[BlockId]) -> None:
        """Adds blocks that others hold, or cached free ones, to the hold.

        Raises: InvariantError if the hold would have a block twice.
        """
        if len(set(blocks)) != len(blocks) or not set(blocks).isdisjoint(hold.blocks):
            raise InvariantError(f"a hold would have a block twice: {list(blocks)}")
        for block in blocks:
            if self._holds[block] == 0:
                del self._free[block]
            self._holds[block] += 1
        hold.blocks.extend(blocks)

    def replace(self, hold: Hold, index: int) -> tuple[BlockId, BlockId]:
        """Puts a fresh block in place of the shared one at `index`; returns (old, new)."""
        old = hold.blocks[index]
        if self._holds[old] < 2:
            raise InvariantError(f"block {old} is not shared: nothing to replace")
        spare = Hold()
        (new,) = self.take(spare, 1)
        hold.blocks[index] = new
        self._holds[old] -= 1
        return old, new

    def drop(self, hold: Hold) -> None:
        """Lets go of everything in the hold, tail first. An empty hold drops nothing."""
        self.shrink(hold, 0)

    def shrink(self, hold: Hold, length: int) -> None:
        """Lets go of the hold's blocks from `length` on, tail first."""
        while len(hold.blocks) > length:
            block = hold.blocks.pop()
            holds = self._holds[block] - 1
            if holds < 0:
                raise InvariantError(f"block {block} was freed twice")
            self._holds[block] = holds
            if holds == 0:
                self._free[block] = None
                if not self._index.is_published(block):
                    self._free.move_to_end(block, last=False)

    def hand_over(self, hold: Hold) -> Hold:
        """Moves everything in the hold to a new one: the holder lets go, a fence takes over."""
        heir = Hold(hold.blocks)
        hold.blocks = []
        return heir
