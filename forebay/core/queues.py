"""Who waits and who runs, each in the one total order. Membership follows state."""

from bisect import bisect_left, insort

from forebay.core.lifecycle import Phase
from forebay.core.request import Request
from forebay.errors import InvariantError


def order_of(request: Request) -> tuple[int, int, int]:
    """The key of the one total order."""
    return request.order


class Queues:
    """Sorted lists of waiting (queued or swapped), parked (loads) and running requests.

    Only `lifecycle.advance` and the first insertion by the scheduler change them. Order is by
    (priority, arrival, id); a preempted request keeps its order and so comes before all that
    arrived later, and is not, once back, the first to yield again.
    """

    def __init__(self) -> None:
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        self.parked: list[Request] = []
        """Loads under way, and complete ones that have no place in the batch yet."""
        self.num_swapped = 0

    def insert(self, request: Request) -> None:
        """Puts a request where its state says."""
        phase = request.state.phase
        if phase is Phase.FINISHED:
            return
        insort(self._list(phase), request, key=order_of)
        self.num_swapped += phase is Phase.SWAPPED

    def remove(self, request: Request) -> None:
        """Takes a request out of the queue that its state names."""
        phase = request.state.phase
        if phase is Phase.FINISHED:
            return
        members = self._list(phase)
        at = bisect_left(members, request.order, key=order_of)
        if at == len(members) or members[at] is not request:
            raise InvariantError(f"request {request.id} is {phase.value} but not in its queue")
        del members[at]
        self.num_swapped -= phase is Phase.SWAPPED

    def _list(self, phase: Phase) -> list[Request]:
        if phase is Phase.RUNNING:
            return self.running
        return self.parked if phase in (Phase.LOADING, Phase.LOADED) else self.waiting

    def disorder(self) -> list[str]:
        """Names of queues that are out of order, for the audit."""
        named = (("waiting", self.waiting), ("parked", self.parked), ("running", self.running))
        return [name for name, members in named if members != sorted(members, key=order_of)]
