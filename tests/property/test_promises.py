"""What holds over whole runs: the same events give the same plans, and nobody is picked on."""

import random
from collections.abc import Sequence as Seq
from dataclasses import replace

import pytest

from forebay.core.effects import Cause
from forebay.core.kv import KvSpace
from forebay.core.limits import Limits, PreemptionMode
from forebay.core.request import Request
from forebay.core.victims import Victims
from tests.support.driver import Job, World, play, random_jobs, random_limits


@pytest.mark.parametrize("seed", range(20))
def test_the_same_events_give_the_same_plans(seed: int) -> None:
    runs = []
    for _ in range(2):
        rng = random.Random(seed)
        world = play(random_limits(rng), random_jobs(rng, 8))
        runs.append((world.steps, world.ended, world.output, world.scheduler.tally))
    assert runs[0] == runs[1]


def crowded(rng: random.Random) -> Limits:
    """Few blocks and no other limit, so that growth is what makes requests yield."""
    return replace(
        random_limits(rng),
        num_blocks=rng.randint(6, 12),
        block_size=4,
        max_num_seqs=16,
        max_num_batched_tokens=64,
        max_model_len=200,
        chunked_prefill=True,
        watermark=0.0,
        pressure=None,
        expected_output_share=0.0,
    )


class Watched(Victims):
    """Notes each decision for growth, and which of them break the guard."""

    def __init__(self, limits: Limits, kv: KvSpace) -> None:
        super().__init__(limits, kv)
        self.decided: list[int] = []
        self.broken: list[int] = []

    def for_growth(self, asker: Request, shortage: int, running: Seq[Request]) -> list[Request]:
        chosen = super().for_growth(asker, shortage, running)
        for victim in chosen:
            peers = [r.num_preemptions for r in running if r.order[0] == victim.order[0]]
            self.decided.append(victim.id)
            if victim.num_preemptions >= min(peers) + self._limits.max_preemption_lead:
                self.broken.append(victim.id)
        return chosen


class Guardless(Watched):
    def _is_spared(self, request: Request, running: Seq[Request]) -> bool:
        return False


def watched(
    limits: Limits, jobs: list[Job], kind: type[Watched] = Watched
) -> tuple[World, Watched]:
    """Plays a workload with the guard watched."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("forebay.core.rooms.Victims", kind)
        world = play(limits, jobs)
    victims = world.scheduler.rooms.victims
    assert isinstance(victims, Watched)
    return world, victims


@pytest.mark.parametrize("seed", range(40))
def test_who_yields_for_growth_is_never_far_ahead_of_a_running_equal(seed: int) -> None:
    """The guard, exactly: when a running request needs a block, each victim has been preempted
    less than `max_preemption_lead` times more often than every running request of its priority,
    itself and the asker included. It does not bind those who yield to a strictly more urgent
    waiting request, nor artificial refusals, where the asker may have to yield by itself.
    """
    rng = random.Random(seed)
    world, victims = watched(crowded(rng), random_jobs(rng, 14))
    assert not victims.broken
    grown = [event.request_id for event in world.preempted if event.cause is Cause.BLOCKS]
    assert grown == victims.decided


@pytest.mark.parametrize("num_blocks", [40, 60, 80])
@pytest.mark.parametrize("lead", [1, 2, 3])
def test_the_newest_of_many_equals_is_not_picked_on(num_blocks: int, lead: int) -> None:
    """Elders that end one by one let the newest in again and again, only to need its blocks."""
    limits = Limits(
        num_blocks=num_blocks,
        block_size=1,
        max_preemption_lead=lead,
        expected_output_share=0.0,
        preemption_mode=PreemptionMode.RECOMPUTE,
    )
    jobs = [Job((key,) * 4, 6 * key + 6) for key in range(8)] + [Job((9,) * 10, 40)]
    _, victims = watched(limits, jobs)
    assert len(victims.decided) >= 8
    assert not victims.broken
    _, guardless = watched(limits, jobs, Guardless)
    assert guardless.broken or lead > 1, "the workload does not come near the guard"
