"""Loads from an external store and held-back prefills in forebay's own loop."""

from typing import Any

import pytest

from forebay.core.events import LoadDone, LoadFailed
from forebay.core.lifecycle import Loaded, Loading, Running
from forebay.core.limits import Fencing, Limits, Policy
from forebay.errors import InvariantError
from forebay.units import LoadId, Nanos
from tests.support.driver import Job, World


def world(*, throttle: tuple[bool, ...] = (), **more: Any) -> World:
    """Blocks of four tokens; whatever fits starts."""
    given = {"num_blocks": 20, "block_size": 4, "expected_output_share": 0.0, **more}
    return World(Limits(fencing=Fencing.IN_FLIGHT, **given), throttle)


def prompt(length: int, start: int = 0) -> tuple[int, ...]:
    return tuple(range(start, start + length))


def test_a_load_takes_all_blocks_and_a_place_but_no_tokens() -> None:
    run = world(max_num_seqs=1)
    rid = run.submit(Job(prompt(18), 3, external=10, load_turns=2))
    other = run.submit(Job(prompt(4, 50), 3))
    step = run.plan()
    assert step is not None
    (load,) = step.loads
    assert (load.start, load.num_tokens, len(load.blocks)) == (0, 10, 3)
    assert step.num_tokens == 0
    assert len(run.requests[rid].live[0].table.blocks) == 5
    assert not isinstance(run.requests[other].state, Running)
    run.finish_step()
    run.run()
    assert run.requests[rid].sequences[0].high_water == 20


def test_a_load_covers_only_what_is_no_hit() -> None:
    run = world()
    run.submit(Job(prompt(9), 1))
    run.turn()
    run.submit(Job(prompt(16), 1, external=16))
    step = run.plan()
    assert step is not None
    assert [(load.start, load.num_tokens, len(load.blocks)) for load in step.loads] == [(8, 8, 2)]
    run.finish_step()
    run.submit(Job(prompt(9), 1, external=8))  # all of it is a hit: nothing is loaded
    step = run.plan()
    assert step is not None
    assert not step.loads


def test_loaded_blocks_are_findable_once_they_are_taken_in() -> None:
    run = world()
    rid = run.submit(Job(prompt(12), 9, external=12))
    run.plan()
    index, hashes = run.scheduler.rooms.kv.index, run.requests[rid].live[0].hashes
    assert index.probe(hashes, 3) == []
    run.finish_step()
    run.end_loads()
    assert isinstance(run.requests[rid].state, Loaded)
    step = run.plan()
    assert step is not None
    assert (step.num_tokens, step.joined[0].num_computed) == (1, 11)
    assert len(index.probe(hashes, 3)) == 3


def test_a_complete_load_starts_behind_an_urgent_request_that_does_not_fit() -> None:
    run = world(num_blocks=8, policy=Policy.PRIORITY, prefix_caching=False)
    loaded = run.submit(Job(prompt(16), 2, priority=5, external=12))
    run.turn()
    urgent = run.submit(Job(prompt(24, 50), 2, priority=0))
    step = run.plan()
    assert isinstance(run.requests[loaded].state, Running)
    assert not isinstance(run.requests[urgent].state, Running)
    assert step is not None
    assert step.num_tokens == 4
    run.finish_step()
    run.run()


def test_a_request_that_yielded_is_loaded_again() -> None:
    run = world(num_blocks=8, policy=Policy.PRIORITY, prefix_caching=False)
    rid = run.submit(Job(prompt(16), 9, priority=5, external=16))
    run.turn()
    run.turn()
    run.submit(Job(prompt(24, 50), 1, priority=0))
    run.run()
    assert run.requests[rid].num_preemptions == 1
    assert run.requests[rid].recomputed_tokens < 4
    assert sum(len(step.loads) for step in run.steps) == 2


@pytest.mark.parametrize("event", [LoadDone(LoadId(1)), LoadFailed(LoadId(1))])
def test_a_load_ends_once(event: LoadDone | LoadFailed) -> None:
    run = world()
    rid = run.submit(Job(prompt(8), 3, external=8, load_turns=99))
    run.plan()
    assert run.requests[rid].state == Loading(LoadId(1))
    run.scheduler.handle(event, Nanos(0))
    with pytest.raises(InvariantError, match="not under way"):
        run.scheduler.handle(event, Nanos(0))


def test_groups_and_more_than_the_prompt_cannot_be_loaded() -> None:
    run = world()
    group = run.submit(Job(prompt(8), 3, n=2, external=4))
    long = run.submit(Job(prompt(8), 3, external=9))
    assert "only a single sequence can be loaded" in run.refused[group].message
    assert "external_tokens is 9" in run.refused[long].message


def test_held_back_prefills_wait_for_decoders_that_run() -> None:
    run = world(throttle=(True,), max_num_batched_tokens=8)
    run.submit(Job(prompt(4), 4))
    first = run.turn()
    run.submit(Job(prompt(20, 50), 2))
    second = run.turn()
    assert first is not None
    assert second is not None
    assert (first.num_tokens, second.num_tokens) == (4, 1)
    third = run.turn()
    assert third is not None
    assert third.num_tokens == 1
    run.run()


def test_nobody_is_held_back_for_a_decoder_that_finds_no_block() -> None:
    run = world(throttle=(True,), num_blocks=4, max_num_batched_tokens=4, prefix_caching=False)
    run.submit(Job(prompt(8), 4))
    run.submit(Job(prompt(8, 50), 4))
    run.run()
    assert len(run.ended) == 2
