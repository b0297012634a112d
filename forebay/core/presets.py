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
from forebay.errors import ConfigError

VLLM_V1_RULES = Rules(
    queues=QueueRule.BY_ADMISSION,
    granting=Granting.BY_CHUNK,
    publishing=Publishing.GRANT,
    duplicates=Duplicates.ALL,
    undone_blocks=UndoneBlocks.STAY_FINDABLE,
    cursor=CursorRule.VLLM_0_25,
    watermark_spare_blocks=1,
)


def vllm_v1(limits: Limits, *, external_store: bool = False, executed: bool = False) -> Limits:
    """The same sizes under the rules of vLLM 0.25.1's V1 scheduler.

    With steps in flight its frees are fenced only where an external store writes blocks.
    `executed`: the plans are run on a model, whose output must be right: blocks that were findable
    but whose tokens were taken back are withdrawn, the one deviation.
    Raises: ConfigError for sizes with which the reference does not start.
    """
    if not limits.chunked_prefill and limits.max_num_batched_tokens < limits.max_model_len:
        raise ConfigError(
            f"without chunked prefill vllm-v1 needs max_num_batched_tokens "
            f"({limits.max_num_batched_tokens}) of at least max_model_len ({limits.max_model_len})"
        )
    fenced = external_store and limits.steps_in_flight > 1
    rules = VLLM_V1_RULES
    if executed:
        rules = replace(rules, undone_blocks=UndoneBlocks.WITHDRAWN)
    return replace(
        limits,
        preset=Preset.VLLM_V1,
        rules=rules,
        preemption_mode=PreemptionMode.RECOMPUTE,
        fencing=Fencing.IN_FLIGHT if fenced else Fencing.OFF,
        max_branches=1,
    )
