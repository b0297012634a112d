"""Queues whose order is not one total order: by admission, and with victims at the head."""

from bisect import insort

from forebay.core.lifecycle import Loaded, Loading, Phase, Queued, QueuedWhy
from forebay.core.limits import Limits, Policy
from forebay.core.policies import QueueRule
from forebay.core.queues import Queues, order_of
from forebay.core.request import Request
from forebay.core.three_queues import ThreeQueues
from forebay.errors import InvariantError


def _load_of(request: Request) -> int:
    assert isinstance(request.state, Loading | Loaded)
    return request.state.load_id


class AdmissionOrder(Queues):
    """Running in order of admission; parked in order of their loads; waiting as the policy says.

    FCFS: newcomers at the tail, whoever comes back at the head. Priority: waiting and parked by
    (priority, arrival, id).
    """

    def __init__(self, policy: Policy) -> None:
        super().__init__()
        self._policy = policy

    def insert(self, request: Request) -> None:
        """Puts a request where its state and the policy say."""
        phase = request.state.phase
        if phase is Phase.FINISHED:
            return
        members = self._list(phase)
        if self._policy is Policy.PRIORITY and phase is not Phase.RUNNING:
            insort(members, request, key=order_of)
        elif isinstance(request.state, Loading | Loaded):
            insort(members, request, key=_load_of)
        elif isinstance(request.state, Queued) and request.state.why is not QueuedWhy.NEW:
            members.insert(0, request)
        else:
            members.append(request)

    def remove(self, request: Request) -> None:
        """Takes a request out of the queue that its state names."""
        phase = request.state.phase
        if phase is Phase.FINISHED:
            return
        try:
            self._list(phase).remove(request)
        except ValueError:
            message = f"request {request.id} is {phase.value} but not in its queue"
            raise InvariantError(message) from None

    def disorder(self) -> list[str]:
        """Names of queues that are out of order."""
        sorted_ones = (
            (("waiting", self.waiting), ("parked", self.parked))
            if self._policy is Policy.PRIORITY
            else ()
        )
        return [name for name, members in sorted_ones if members != sorted(members, key=order_of)]


def build_queues(limits: Limits) -> Queues:
    """The queues that the rules ask for."""
    match limits.rules.queues:
        case QueueRule.ONE_ORDER:
            return Queues()
        case QueueRule.BY_ADMISSION:
            return AdmissionOrder(limits.policy)
        case QueueRule.THREE_QUEUES:
            return ThreeQueues()
