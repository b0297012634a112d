"""One turn of any driver, live or simulated: all events of one instant, then as many plans as go.

Every event of an instant is taken in before anything is planned, so that the order in which
things happen to arrive within an instant decides as little as possible.
"""

from collections.abc import Iterable, Sequence
from typing import Protocol

from forebay.core.effects import Effect, Step
from forebay.core.events import Event
from forebay.units import Nanos


class Machine(Protocol):
    """What a turn asks of `forebay.core.scheduler.Scheduler`."""

    def handle(self, event: Event, now: Nanos) -> Sequence[Effect]:
        """Takes in one fact."""

    def tick(self, now: Nanos) -> Sequence[Effect]:
        """Ends what has outlived its deadline."""

    def plan(self, now: Nanos) -> Step | None:
        """Decides the next step; None when nothing is to be done, or enough steps are out."""


class World(Protocol):
    """Who performs what the machine asks for."""

    def tell(self, effect: Effect, now: Nanos) -> None:
        """Passes on what became of a request."""

    def perform(self, step: Step) -> None:
        """Starts a step. Its result comes back later, as the event `StepDone`."""


def turn(machine: Machine, events: Iterable[Event], now: Nanos, world: World) -> None:
    """Handles `events`, ends what is overdue, then plans and performs steps until none is due.

    `events` is read lazily: what a driver does between two of them sees the effects of the first.
    """
    for event in events:
        for effect in machine.handle(event, now):
            world.tell(effect, now)
    for effect in machine.tick(now):
        world.tell(effect, now)
    while (step := machine.plan(now)) is not None:
        world.perform(step)
