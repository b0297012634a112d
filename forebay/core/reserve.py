"""May it start if everybody, itself included, runs to the limit? Then nobody is ever evicted.

Source: TensorRT-LLM's `GUARANTEED_NO_EVICT`. Pays with memory that early stops never use.
"""

from forebay.core.kv import KvSpace
from forebay.core.limits import Limits
from forebay.core.queues import Queues
from forebay.core.request import Request


class ReserveToLimit:
    """Adds up what all that run would hold at their full length. Keeps nothing."""

    def __init__(self, limits: Limits, kv: KvSpace, queues: Queues) -> None:
        self._limits = limits
        self._kv = kv
        self._queues = queues

    def note_stopped(self, num_output: int) -> None:
        """Outputs that end early change nothing: the next request may not."""

    def pays(self, request: Request, cost: int) -> bool:  # noqa: ARG002  # one question for all
        """Whether the pool holds the full lengths of all that run and of the request."""
        started = [*self._queues.running, *self._queues.parked]
        reserved = sum(self._at_limit(req) for req in started)
        room = self._limits.num_blocks - self._orphaned(started)
        return reserved + self._at_limit(request) <= room

    def _orphaned(self, started: list[Request]) -> int:
        """Blocks that a load under way still writes for a request that has ended."""
        tables = {block for req in started for seq in req.live for block in seq.table.blocks}
        pool = self._kv.pool
        return pool.num_blocks - pool.num_free - len(tables) - self._kv.fences.num_returning

    def _at_limit(self, request: Request) -> int:
        """Blocks at full length; the last sampled token is never computed and needs none."""
        num_prompt = request.spec.num_prompt
        return self._limits.blocks_for_group(num_prompt, request.limit - 1, request.num_seats)
