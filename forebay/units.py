"""Identifiers, units and the few arithmetic helpers that every package shares."""

from typing import NewType

Nanos = NewType("Nanos", int)
"""A point in time or a duration, integer nanoseconds: ties are exact and journals stable."""

RequestId = NewType("RequestId", int)
"""A request inside one engine; the caller's own (string) id stays at the edge."""

SeqId = NewType("SeqId", int)
"""One sequence of a request, that is one row of the device batch; see `seq_id`."""

StepSeq = NewType("StepSeq", int)
"""The number of a planned step, counted from 1."""

BlockId = NewType("BlockId", int)
"""A block of the device pool, `0 <= block < num_blocks`."""

HostSlot = NewType("HostSlot", int)
"""A block-sized slot of the host pool, `0 <= slot < num_host_blocks`."""

LoadId = NewType("LoadId", int)
"""The number of a load from an external store, counted from 1."""

MAX_BRANCHES = 8
NANOS_PER_S = 1_000_000_000
_MASK = (1 << 64) - 1


def div_ceil(numerator: int, denominator: int) -> int:
    """The quotient rounded up."""
    return -(-numerator // denominator)


def seq_id(request_id: RequestId, branch: int) -> SeqId:
    """The sequence id of branch `0 <= branch < MAX_BRANCHES` of a request."""
    return SeqId(request_id * MAX_BRANCHES + branch)


def request_of(seq: SeqId) -> RequestId:
    """The request that a sequence belongs to."""
    return RequestId(seq // MAX_BRANCHES)


def branch_of(seq: SeqId) -> int:
    """Which branch of its request a sequence is."""
    return seq % MAX_BRANCHES


def nanos(seconds: float) -> Nanos:
    """Seconds to integer nanoseconds, rounded to nearest."""
    return Nanos(round(seconds * NANOS_PER_S))


def keyed_fraction(*keys: int) -> float:
    """A fraction in [0, 1) that depends on the keys alone, not on how often or when it is asked.

    Source: the finaliser of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014), chained over the keys.
    """
    state = 0x9E3779B97F4A7C15
    for key in keys:
        state = (state ^ (key & _MASK)) * 0xBF58476D1CE4E5B9 & _MASK
        state = (state ^ (state >> 27)) * 0x94D049BB133111EB & _MASK
        state ^= state >> 31
    return (state >> 11) / (1 << 53)
