"""Small parts of a scheduler, built the short way."""

from typing import Any

from forebay.core.events import Arrive, FinishReason
from forebay.core.limits import Limits
from forebay.core.request import Request, add_branches, new_request
from forebay.core.rooms import Rooms
from forebay.units import Nanos, RequestId


def limits(**more: Any) -> Limits:
    """Eight blocks of four tokens, whatever fits starts."""
    return Limits(**{"num_blocks": 8, "block_size": 4, "expected_output_share": 0.0, **more})


def arrive(rid: int = 0, p: int = 6, m: int = 10, **more: Any) -> Arrive:
    """A request of `p` prompt and `m` output tokens that arrives at time `rid`."""
    given = {"arrival_ns": Nanos(rid), **more}
    return Arrive(request_id=RequestId(rid), num_prompt=p, max_tokens=m, **given)


def request(rid: int = 0, p: int = 6, m: int = 10, priority: int = 0, **more: Any) -> Request:
    """A queued request, as intake makes it."""
    return new_request(arrive(rid, p, m, **more), p + m, FinishReason.LENGTH, priority)


def running(rooms: Rooms, req: Request, computed: int, known: int | None = None) -> Request:
    """Admits a request, forks it if it is a group, and sets its progress."""
    from forebay.core.draft import StepDraft

    rooms.queues.insert(req)
    probe = rooms.kv.probe(req)
    rooms.actions.start(req, probe, StepDraft.start(rooms.limits, Nanos(0)))
    if req.spec.num_branches > 1:
        rooms.kv.fork(req.sequences[0], add_branches(req))
    for seq in req.live:
        seq.computed, seq.known = computed, known or seq.known
    return req
