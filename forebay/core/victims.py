"""Who yields, and how? Decides only; `Actions.preempt` applies."""

from collections.abc import Sequence as Seq

from forebay.core.effects import Yield
from forebay.core.kv import KvSpace
from forebay.core.limits import Limits, PreemptionMode
from forebay.core.request import Request


class Victims:
    """The victim order: worst (priority, arrival) first, with a guard against picking on one.

    Among equals, whoever has been preempted `max_preemption_lead` times more often than a running
    peer of the same priority is passed over, so the worst-off is never more than that behind.
    """

    def __init__(self, limits: Limits, kv: KvSpace) -> None:
        self._limits = limits
        self._kv = kv

    def for_growth(self, asker: Request, shortage: int, running: Seq[Request]) -> list[Request]:
        """Requests behind the asker whose yielding frees `shortage` blocks; [] if too little.

        When all behind it are passed over by the guard the asker itself yields. With nobody
        behind it the answer is []: it waits with its blocks, and whoever is ahead may take them.
        """
        behind = [req for req in reversed(running) if req.order > asker.order]
        if not behind:
            return []
        open_to_yield = [req for req in behind if not self._is_spared(req, running)]
        chosen = self._enough(open_to_yield, shortage)
        if chosen:
            return chosen
        if asker is running[0] and len(open_to_yield) < len(behind):
            return [asker]
        return []

    def for_urgent(
        self, asker: Request, blocks: int, seats: int, running: Seq[Request]
    ) -> list[Request]:
        """Strictly less urgent requests whose yielding gives a waiting one blocks and seats.

        [] if they cannot give enough. Equal priority never evicts: two equals would take turns.
        """
        urgency = asker.order[0]
        chosen: list[Request] = []
        for req in reversed(running):
            if req.order[0] <= urgency:
                break
            chosen.append(req)
            if (
                self._kv.num_freed_by(chosen) >= blocks
                and sum(r.num_seats for r in chosen) >= seats
            ):
                return chosen
        return []

    def how(self, victim: Request) -> Yield:
        """Swap if the mode says so, and host memory has room; otherwise recompute.

        In `AUTO`, swapping both ways must be predicted cheaper than computing again what would
        be dropped.
        """
        mode = self._limits.preemption_mode
        if not self._wants_swap(victim) or self.lacks_host_room(victim):
            return Yield.RECOMPUTE
        if mode is PreemptionMode.AUTO:
            costs = self._limits.costs
            blocks = len(self._kv.computed_blocks(victim))
            tokens = min(sum(seq.computed for seq in victim.live), blocks * self._kv.block_size)
            if 2 * blocks * costs.swap_ns_per_block >= tokens * costs.prefill_ns_per_token:
                return Yield.RECOMPUTE
        return Yield.SWAP

    def lacks_host_room(self, victim: Request) -> bool:
        """Whether it would be swapped, were there room in host memory."""
        if not self._wants_swap(victim):
            return False
        return len(self._kv.computed_blocks(victim)) > self._kv.host.num_free

    def _wants_swap(self, victim: Request) -> bool:
        mode = self._limits.preemption_mode
        if mode is PreemptionMode.RECOMPUTE or not self.is_swappable(victim):
            return False
        return mode is not PreemptionMode.GROUPS or victim.num_seats > 1

    @staticmethod
    def is_swappable(victim: Request) -> bool:
        """Whether its blocks hold progress worth keeping.

        A group in the middle of a replay starts it again; who only waits for its last token in
        flight has nothing left to keep.
        """
        if all(seq.to_compute == 0 for seq in victim.live):
            return False
        lead = victim.live[0]
        return lead.computed > 0 and lead.computed >= victim.shared_tokens

    def _is_spared(self, request: Request, running: Seq[Request]) -> bool:
        peers = [r.num_preemptions for r in running if r.order[0] == request.order[0]]
        return request.num_preemptions >= min(peers) + self._limits.max_preemption_lead

    def _enough(self, candidates: Seq[Request], shortage: int) -> list[Request]:
        for count in range(1, len(candidates) + 1):
            if self._kv.num_freed_by(candidates[:count]) >= shortage:
                return list(candidates[:count])
        return []
