"""What the machine tells about itself: gauges of now, and counters since its start."""

from dataclasses import dataclass


@dataclass(slots=True, frozen=True, kw_only=True)
class Gauges:
    """The pool and the queues at this moment.

    `blocks_active + blocks_fenced + blocks_cached + blocks_free == blocks_total`: held by
    requests; held by fences only; free but with findable content; free and empty.
    """

    num_running: int
    num_waiting: int
    num_swapped: int
    blocks_total: int
    blocks_active: int
    blocks_fenced: int
    blocks_cached: int
    blocks_free: int
    host_total: int
    host_used: int
    num_in_flight: int
    host_leaked: int = 0
    """Slots lost to a quirk of the preset; never part of `host_used`."""


@dataclass(slots=True, kw_only=True)
class Tally:
    """Counters since start. Tokens and blocks are counted when they are planned."""

    steps: int = 0
    tokens: int = 0
    requests_arrived: int = 0
    requests_refused: int = 0
    requests_ended: int = 0
    preemptions_recompute: int = 0
    preemptions_swap: int = 0
    swaps_without_room: int = 0
    """Victims that should have been swapped but were recomputed for lack of host room."""
    artificial_refusals: int = 0
    recomputed_tokens: int = 0
    swapped_out_blocks: int = 0
    swapped_in_blocks: int = 0
    cached_prompt_tokens: int = 0
    stalled_rows: int = 0
    """Times a running request waited a step for a block."""
    peak_active_blocks: int = 0
