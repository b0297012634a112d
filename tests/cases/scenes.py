"""What the cases share: distinct prompts, short ways to set a scene, and what a step did."""

from collections.abc import Iterable
from typing import Any

from forebay.core.effects import JoinKind, Step
from forebay.core.limits import Limits, PreemptionMode
from forebay.units import RequestId, request_of
from tests.support.driver import Job, World
from tests.support.shadow import Work


def text(length: int, key: int) -> tuple[int, ...]:
    """A prompt that shares no block with that of another key."""
    return tuple(1000 * (key + 1) + at for at in range(length))


def job(p: int, m: int, key: int, **more: Any) -> Job:
    """A request of `p` prompt and `m` output tokens; others of the same key share its prefix."""
    return Job(text(p, key), m, **more)


def world(num_blocks: int, *jobs: Job, **limits: Any) -> World:
    """Blocks of four tokens, no prefix cache, recompute, and whatever fits starts.

    That is, where a case does not set it itself.
    """
    given: dict[str, Any] = {
        "block_size": 4,
        "prefix_caching": False,
        "preemption_mode": PreemptionMode.RECOMPUTE,
        "expected_output_share": 0.0,
        **limits,
    }
    scene = World(Limits(num_blocks=num_blocks, **given))
    for each in jobs:
        scene.submit(each)
    return scene


def turns(scene: World, count: int) -> list[Step | None]:
    """Takes `count` turns; the first step planned in each."""
    return [scene.turn() for _ in range(count)]


def joins(step: Step) -> list[tuple[RequestId, JoinKind]]:
    """Requests that a step brings into the batch, once each."""
    return list(dict.fromkeys((request_of(join.seq_id), join.kind) for join in step.joined))


def admissions(steps: Iterable[Step], rid: RequestId) -> list[int]:
    """Numbers of the steps that bring a request into the batch."""
    return [step.seq for step in steps if rid in (request for request, _ in joins(step))]


def computed_by(step: Step, scene: World) -> dict[RequestId, int]:
    """Tokens that a step computes for each request, from what the executor is told.

    Only for a step that has just been planned: silent rows are read off the present batch.
    """
    parts: dict[RequestId, int] = {}
    named = {chunk.seq_id: chunk.num_tokens for chunk in step.chunks}
    children = {child for fork in step.forks for child in fork.children}
    for seq in scene.scheduler.rooms.actions.batch - children - set(step.idle):
        rid = request_of(seq)
        parts[rid] = parts.get(rid, 0) + named.get(seq, 1)
    return parts


def unpressed(each: Job, branch: int = 0) -> list[int]:
    """The output of a sequence of the request in a run without any memory."""
    return Work(each.prompt, each.stop_every).output(branch, each.max_tokens)
