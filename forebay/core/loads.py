"""Loads from an external store: ordered here, and told here when they are done.

A load has a hold of its own on all blocks of the table that it fills. So a request that is
aborted lets go of its table as ever, and its blocks come back when the copy is over.
"""

from dataclasses import dataclass

from forebay.core.blocks import Hold
from forebay.core.draft import StepDraft
from forebay.core.effects import Load
from forebay.core.kv import KvSpace, Probe
from forebay.core.lifecycle import Loaded, Loading, Move, Queued, QueuedWhy, advance
from forebay.core.queues import Queues
from forebay.core.request import Request
from forebay.errors import InvariantError
from forebay.units import LoadId, div_ceil


@dataclass(slots=True, frozen=True)
class _Job:
    request: Request
    hold: Hold
    num_tokens: int
    """Computed tokens of the request once the load is done, hits included."""


class Loads:
    """Loads under way. Only single sequences are loaded."""

    def __init__(self, kv: KvSpace, queues: Queues) -> None:
        self._kv = kv
        self._queues = queues
        self._jobs: dict[LoadId, _Job] = {}
        self._last = LoadId(0)

    def __len__(self) -> int:
        return len(self._jobs)

    @property
    def holds(self) -> list[Hold]:
        """The live holds, for the audit."""
        return [job.hold for job in self._jobs.values()]

    def offered(self, request: Request, probe: Probe) -> int:
        """Tokens that a load would bring beyond the local hits; 0 if none."""
        if request.load_failed or not request.spec.external_tokens:
            return 0
        return max(0, request.spec.external_tokens - len(probe.hits[0]) * self._kv.block_size)

    def order(self, request: Request, probe: Probe, draft: StepDraft) -> None:
        """Queued -> Loading. Takes the blocks of hits and load at once."""
        (seq,) = request.live
        num_tokens = request.spec.external_tokens
        self._kv.admit(request, probe)
        start = seq.computed
        self._kv.extend(seq, num_tokens)
        hold = Hold()
        self._kv.pool.share(hold, seq.table.blocks)
        self._last = LoadId(self._last + 1)
        self._jobs[self._last] = _Job(request, hold, num_tokens)
        size = self._kv.block_size
        draft.loads.append(
            Load(
                load_id=self._last,
                seq_id=seq.id,
                start=start,
                num_tokens=num_tokens - start,
                blocks=tuple(seq.table.blocks[start // size : div_ceil(num_tokens, size)]),
            )
        )
        advance(request, Move.ORDER_LOAD, Loading(self._last), self._queues)

    def done(self, load_id: LoadId) -> None:
        """Loading -> Loaded, unless the request ended meanwhile; then its blocks come free."""
        job = self._pop(load_id)
        if job.request.state == Loading(load_id):
            (seq,) = job.request.live
            state = Loaded(load_id, num_hit_tokens=seq.computed)
            seq.computed = job.num_tokens
            advance(job.request, Move.LOAD_DONE, state, self._queues)
        self._kv.pool.drop(job.hold)

    def failed(self, load_id: LoadId) -> None:
        """Loading -> Queued: the request computes its prompt itself."""
        job = self._pop(load_id)
        if job.request.state == Loading(load_id):
            (seq,) = job.request.live
            self._kv.pool.drop(seq.table)
            seq.computed = seq.published = 0
            job.request.load_failed = True
            state = Queued(QueuedWhy.LOAD_FAILED)
            advance(job.request, Move.LOAD_FAILED, state, self._queues)
        self._kv.pool.drop(job.hold)

    def take_in(self, request: Request) -> None:
        """Makes loaded blocks findable. The last known token is computed again, to sample."""
        (seq,) = request.live
        self._kv.publish(seq, seq.computed)
        seq.computed = min(seq.computed, seq.known - 1)

    def _pop(self, load_id: LoadId) -> _Job:
        if load_id not in self._jobs:
            raise InvariantError(f"load {load_id} is reported, but it is not under way")
        return self._jobs.pop(load_id)
