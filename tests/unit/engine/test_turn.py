from collections.abc import Iterator

from forebay.core.effects import Effect, Ended, Step
from forebay.core.events import Abort, Event, FinishReason
from forebay.engine.turn import turn
from forebay.units import Nanos, RequestId, SeqId, StepSeq


class Notebook:
    """A machine and a world that write down what happens."""

    def __init__(self, num_steps: int = 0) -> None:
        self.lines: list[str] = []
        self._num_steps = num_steps

    def handle(self, event: Event, now: Nanos) -> list[Effect]:
        assert isinstance(event, Abort)
        self.lines.append(f"handle {event.request_id} at {now}")
        return [Ended(SeqId(event.request_id * 8), FinishReason.ABORT, 0, None)]

    def tick(self, now: Nanos) -> list[Effect]:
        self.lines.append("tick")
        return [Ended(SeqId(72), FinishReason.DEADLINE, 0, None)]

    def plan(self, now: Nanos) -> Step | None:
        if self._num_steps == 0:
            return None
        self._num_steps -= 1
        return Step(seq=StepSeq(2 - self._num_steps))

    def tell(self, effect: Effect, now: Nanos) -> None:
        assert isinstance(effect, Ended)
        self.lines.append(f"tell {effect.seq_id}")

    def perform(self, step: Step) -> None:
        self.lines.append(f"perform {step.seq}")


def test_every_event_of_an_instant_is_handled_before_anything_is_planned() -> None:
    book = Notebook(num_steps=2)
    turn(book, [Abort(request_id=RequestId(1)), Abort(request_id=RequestId(2))], Nanos(5), book)
    assert book.lines == [
        *("handle 1 at 5", "tell 8", "handle 2 at 5", "tell 16"),
        *("tick", "tell 72", "perform 1", "perform 2"),
    ]


def test_a_driver_sees_the_effects_of_one_event_before_it_gives_the_next() -> None:
    book = Notebook()

    def events() -> Iterator[Event]:
        yield Abort(request_id=RequestId(1))
        book.lines.append("between")
        yield Abort(request_id=RequestId(2))

    turn(book, events(), Nanos(0), book)
    assert book.lines[:4] == ["handle 1 at 0", "tell 8", "between", "handle 2 at 0"]
