"""Presets: combinations of policy values under which a reference's decisions are reproduced."""

from dataclasses import replace

from forebay.core.limits import Fencing, Limits, PreemptionMode
from forebay.core.policies import (
    CursorRule,
    Duplicates,
    Granting,
    Preset,
    Publishing,
    QueueRule,
    Rules,
    UndoneBlocks,
)

VLLM_V1_RULES = Rules(
    queues=QueueRule.BY_ADMISSION,
    granting=Granting.BY_CHUNK,
    publishing=Publishing.GRANT,
    duplicates=Duplicates.ALL,
    undone_blocks=UndoneBlocks.STAY_FINDABLE,
    cursor=CursorRule.VLLM_0_25,
    watermark_spare_blocks=1,
)


def vllm_v1(limits: Limits, *, external_store: bool = False) -> Limits:
    """The same sizes under the rules of vLLM 0.25.1's V1 scheduler.

    With steps in flight its frees are fenced only where an external store writes blocks.
    """
    fenced = external_store and limits.steps_in_flight > 1
    return replace(
        limits,
        preset=Preset.VLLM_V1,
        rules=VLLM_V1_RULES,
        preemption_mode=PreemptionMode.RECOMPUTE,
        fencing=Fencing.IN_FLIGHT if fenced else Fencing.OFF,
        max_branches=1,
    )
