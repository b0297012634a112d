"""Host memory for the private KV of swapped requests: is there room, and where?

Copies are in step: ordered with compute, so a device block that was swapped out can be used again
in the same step, and no state between Running and Swapped is needed. A block that several branches
of a group share is copied once.
"""

from dataclasses import dataclass

from forebay.errors import InvariantError
from forebay.units import HostSlot, SeqId


@dataclass(slots=True, frozen=True)
class HostRun:
    """Where a swapped request's blocks lie: per sequence in table order, and each slot once."""

    tables: dict[SeqId, tuple[HostSlot, ...]]
    slots: tuple[HostSlot, ...]


class HostPool:
    """Slots `0 <= s < num_slots`, each free or part of one `HostRun`."""

    def __init__(self, num_slots: int) -> None:
        self.num_slots = num_slots
        self._free = [HostSlot(slot) for slot in reversed(range(num_slots))]
        self._used: set[HostSlot] = set()
        self.num_leaked = 0
        """Slots that nobody will ever give back."""

    @property
    def num_free(self) -> int:
        """Slots that can be taken now."""
        return len(self._free)

    @property
    def used(self) -> frozenset[HostSlot]:
        """Slots that are part of a run, for the audit."""
        return frozenset(self._used)

    def take(self, count: int) -> list[HostSlot]:
        """Takes `count` free slots. The caller asks `num_free` first."""
        if count > len(self._free):
            raise InvariantError(f"{count} host slots taken but only {len(self._free)} are free")
        taken = [self._free.pop() for _ in range(count)]
        self._used.update(taken)
        return taken

    def leak(self, run: HostRun) -> None:
        """Forgets a run without freeing its slots: a quirk of vLLM V0, kept on demand."""
        self._used.difference_update(run.slots)
        self.num_leaked += len(run.slots)

    def give_back(self, run: HostRun) -> None:
        """Frees a run's slots. Raises InvariantError when done twice."""
        for slot in run.slots:
            if slot not in self._used:
                raise InvariantError(f"host slot {slot} was freed twice")
            self._used.remove(slot)
            self._free.append(slot)
