"""Which queues a scheduler keeps."""

from forebay.core.limits import Limits
from forebay.core.policies import QueueRule
from forebay.core.queues import Queues
from forebay.core.three_queues import ThreeQueues


def build_queues(limits: Limits) -> Queues:
    """The queues that the rules ask for."""
    if limits.rules.queues is QueueRule.THREE_QUEUES:
        return ThreeQueues()
    return Queues()
