"""May it start if those that run generate a share of what they may? The share learns.

It starts high, sinks with every step of decoding that finds its blocks, and after a retraction is
set to what would have been right. A request that cannot stop early is judged exactly instead: the
pool is played forward in the order in which requests end. Source: SGLang, `PrefillAdder` and
`ScheduleBatch.retract_decode`.
"""

from collections.abc import Sequence as Seq

from forebay.core.kv import KvSpace
from forebay.core.limits import Limits
from forebay.core.queues import Queues
from forebay.core.request import Request

START = 0.7
FLOOR_FACTOR = 0.14
DECAY_STEPS = 600
RETRACT_STEPS = 20
"""Steps that those who stay should be able to decode after a retraction."""
MOST_EXPECTED = 4096
"""Tokens beyond which a longer limit is not believed."""


class TokenRatio:
    """The share of remaining output that admission keeps free."""

    def __init__(self, limits: Limits, kv: KvSpace, queues: Queues) -> None:
        self._block_size = limits.block_size
        self._kv = kv
        self._queues = queues
        self._start = min(START * limits.rules.conservativeness, 1.0)
        self._floor = self._start * FLOOR_FACTOR
        self.ratio = self._start

    def note_stopped(self, num_output: int) -> None:
        """The share learns from retractions and from their absence, not from lengths."""

    def note_idle(self) -> None:
        """Nothing is left to do: what comes next may be another kind of load."""
        self.ratio = self._start

    def note_decoded(self) -> None:
        """A step of decoding found all its blocks."""
        step = (self._start - self._floor) / DECAY_STEPS
        self.ratio = max(self.ratio - step, self._floor)

    def note_retracted(self, kept: Seq[Request]) -> None:
        """Somebody had to yield. `kept`: those that go on."""
        decoded = sum(generated(req) for req in kept)
        most = sum(req.num_seats * (req.limit - req.spec.num_prompt) for req in kept)
        self.ratio = min(1.0, (decoded + RETRACT_STEPS * len(kept)) / max(1, most))

    def pays(self, request: Request, cost: int) -> bool:
        """Whether a request that takes `cost` blocks now leaves others room to go on."""
        free = (self._kv.pool.num_free - cost) * self._block_size
        if request.spec.runs_to_limit:
            return self._ends_in_time(request, free)
        promised = sum(self._promised(req) for req in self._started)
        return _rest(request) < free - promised

    @property
    def _started(self) -> list[Request]:
        """All that hold blocks: running, or parked for a load."""
        return [*self._queues.running, *self._queues.parked]

    def _promised(self, request: Request) -> float:
        """Those that have not generated yet count in full, as when they were admitted."""
        new = request.is_prefilling or not generated(request)
        return _rest(request) * (1.0 if new else self.ratio)

    def _ends_in_time(self, candidate: Request, free: int) -> bool:
        """Whether free tokens last until the next request ends, each time one ends."""
        states = sorted(
            state
            for req in [*self._started, candidate]
            for state in self._lives(req)
            if state[0] > 0
        )
        freed = 0
        for at, (left, occupied) in enumerate(states):
            rows = len(states) - at
            if free + freed - left * rows <= rows:
                return False
            freed += occupied
        return True

    def _lives(self, request: Request) -> list[tuple[float, int]]:
        """Per sequence: tokens it is expected to generate still, and tokens it holds."""
        share = 1.0 if request.spec.runs_to_limit else self.ratio
        expected = share * (request.limit - request.spec.num_prompt)
        lives = [(expected - _output(request, seq.total), seq.total) for seq in request.live]
        return lives if request.forked else lives * request.num_seats


def generated(request: Request) -> int:
    """Output tokens of all live sequences, those in flight included."""
    return sum(_output(request, seq.total) for seq in request.live)


def _output(request: Request, total: int) -> int:
    return total - request.spec.num_prompt


def _rest(request: Request) -> int:
    """Tokens that the request may still generate, as far as they are believed."""
    rests = [min(seq.limit - seq.total, MOST_EXPECTED) for seq in request.live]
    return sum(rests) if request.forked else rests[0] * request.num_seats
