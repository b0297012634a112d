"""vLLM V0's queues: waiting, running and swapped, each in the order of entering."""

from forebay.core.lifecycle import Phase, Queued, QueuedWhy
from forebay.core.queues import Queues
from forebay.core.request import Request
from forebay.errors import InvariantError


class ThreeQueues(Queues):
    """`waiting` is still everyone who does not run; `queued` and `swapped` are its two parts.

    Victims to be recomputed stay in `aside` until the step is planned: the step that preempts a
    request does not admit it again.
    """

    def __init__(self) -> None:
        super().__init__()
        self.queued: list[Request] = []
        self.swapped: list[Request] = []
        self.aside: list[Request] = []

    def insert(self, request: Request) -> None:
        """Puts a request at the end of the queue that its state names, or aside."""
        phase = request.state.phase
        if phase is Phase.FINISHED:
            return
        self._list(phase).append(request)
        if phase is not Phase.RUNNING:
            self._part(request).append(request)
        self.num_swapped = len(self.swapped)

    def remove(self, request: Request) -> None:
        """Takes a request out of the queue that its state names."""
        phase = request.state.phase
        if phase is Phase.FINISHED:
            return
        try:
            self._list(phase).remove(request)
            if phase is not Phase.RUNNING:
                part = self.queued if request in self.queued else self._part(request)
                part.remove(request)
        except ValueError:
            message = f"request {request.id} is {phase.value} but not in its queue"
            raise InvariantError(message) from None
        self.num_swapped = len(self.swapped)

    def settle(self, running: list[Request]) -> None:
        """The step is planned: running in this order, and victims at the head of waiting."""
        if len(running) != len(self.running) or set(running) != set(self.running):
            raise InvariantError("a new order of the running queue must name the same requests")
        self.running = running
        self.queued = self.aside[::-1] + self.queued
        self.aside = []

    def disorder(self) -> list[str]:
        """Names of queues that are out of order: none, whoever entered last is last."""
        return []

    def _part(self, request: Request) -> list[Request]:
        if request.state.phase is Phase.SWAPPED:
            return self.swapped
        return self.aside if request.state == Queued(QueuedWhy.PREEMPTED) else self.queued
