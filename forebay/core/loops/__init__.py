"""One planning loop per family of behaviour, each a screen long, over the same rooms."""

from typing import Protocol

from forebay.core.draft import StepDraft
from forebay.core.loops.default import DefaultLoop
from forebay.core.loops.ratio import RatioLoop
from forebay.core.loops.vllm_v0 import VllmV0Loop
from forebay.core.policies import Preset
from forebay.core.rooms import Rooms
from forebay.errors import InvariantError


class Loop(Protocol):
    """Plans steps; keeps what it must remember from one to the next."""

    def plan(self, draft: StepDraft) -> None:
        """Fills the draft: who runs, who yields, who starts."""


def build_loop(rooms: Rooms) -> Loop:
    """The loop of the preset."""
    match rooms.limits.preset:
        case Preset.FOREBAY | Preset.NO_EVICT:
            return DefaultLoop(rooms)
        case Preset.RATIO:
            return RatioLoop(rooms)
        case Preset.VLLM_V0:
            return VllmV0Loop(rooms)
        case Preset.VLLM_V1:
            raise InvariantError("the loop of vllm-v1 is on its own branch")
