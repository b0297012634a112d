"""May it start if everybody, itself included, runs to the limit? Then nobody is ever evicted.

Source: TensorRT-LLM's `GUARANTEED_NO_EVICT`. Pays with memory that early stops never use.
"""

from forebay.core.limits import Limits
from forebay.core.queues import Queues
from forebay.core.request import Request


class ReserveToLimit:
    """Adds up what all that run would hold at their full length. Keeps nothing."""

    def __init__(self, limits: Limits, queues: Queues) -> None:
        self._limits = limits
        self._queues = queues

    def note_stopped(self, num_output: int) -> None:
        """Outputs that end early change nothing: the next request may not."""

    def pays(self, request: Request, cost: int) -> bool:  # noqa: ARG002  # one question for all
        """Whether the pool holds the full lengths of all that run and of the request."""
        reserved = sum(self._at_limit(req) for req in self._queues.running)
        return reserved + self._at_limit(request) <= self._limits.num_blocks

    def _at_limit(self, request: Request) -> int:
        """Blocks at full length; the last sampled token is never computed and needs none."""
        num_prompt = request.spec.num_prompt
        return self._limits.blocks_for_group(num_prompt, request.limit - 1, request.num_seats)
