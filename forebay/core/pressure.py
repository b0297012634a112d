"""Artificial pressure: an allocator that refuses now and then, so that preemption always runs."""

from forebay.core.limits import ArtificialPressure
from forebay.units import SeqId, StepSeq, keyed_fraction


class Pressure:
    """Refuses allocations by keyed draws: the same workload meets the same refusals."""

    def __init__(self, settings: ArtificialPressure | None) -> None:
        self._settings = settings
        self.num_refused = 0

    def refuses(self, seq: SeqId, step: StepSeq) -> bool:
        """Whether a sequence's allocation in this step is refused although blocks are free."""
        settings = self._settings
        if settings is None or self.num_refused >= settings.max_refusals:
            return False
        if keyed_fraction(settings.seed, seq, step) >= settings.probability:
            return False
        self.num_refused += 1
        return True
