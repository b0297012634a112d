"""The only place in the engine that reads the time."""

import time

from forebay.units import Nanos


class MonotonicClock:
    """The real clock of a live engine."""

    def now(self) -> Nanos:
        """Monotonic time; its zero means nothing."""
        return Nanos(time.monotonic_ns())
