"""One planning loop per family of behaviour, each a screen long, over the same rooms."""

from typing import Protocol, assert_never

from forebay.core.draft import StepDraft
from forebay.core.loops.default import DefaultLoop
from forebay.core.loops.ratio import RatioLoop
from forebay.core.loops.vllm_v0 import VllmV0Loop
from forebay.core.loops.vllm_v1 import VllmV1Loop
from forebay.core.policies import Preset
from forebay.core.rooms import Rooms


class Loop(Protocol):
    """Decides who runs, who yields and who starts in one step."""

    def plan(self, draft: StepDraft) -> None:
        """Fills the draft."""


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
            return VllmV1Loop(rooms)
        case preset:
            assert_never(preset)
