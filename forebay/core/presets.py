"""Presets: combinations of policy values under which a reference's decisions are reproduced."""

from dataclasses import replace

from forebay.core.limits import Fencing, Limits, PreemptionMode
from forebay.core.policies import (
    CursorRule,
    Duplicates,
    Granting,
    GrowthCheck,
    HostLeak,
    Intake,
    Preset,
    PromptDelay,
    Publishing,
    QueueRule,
    Rules,
    StartRule,
    SwapInSize,
    SwapSpan,
    UndoneBlocks,
    Urgency,
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


VLLM_V0_RULES = Rules(
    queues=QueueRule.THREE_QUEUES,
    intake=Intake.CLAMP,
    urgency=Urgency.WAITS,
    growth=GrowthCheck.ONE_EACH,
    swap_span=SwapSpan.TABLE,
    swap_in_size=SwapInSize.WHOLE,
    host_leak=HostLeak.WHEN_IGNORED,
)


def vllm_v0(limits: Limits, *, delay_factor: float = 0.0) -> Limits:
    """The same sizes under the rules of vLLM 0.5.5's V0 scheduler and its block manager v1.

    `PreemptionMode.AUTO` becomes V0's own choice: groups are swapped, single sequences are
    recomputed. Its watermark is 0.01 unless `limits` says otherwise.
    """
    mode = limits.preemption_mode
    return replace(
        limits,
        preset=Preset.VLLM_V0,
        rules=replace(
            VLLM_V0_RULES,
            prompt_delay=PromptDelay(factor=delay_factor) if delay_factor > 0 else None,
        ),
        preemption_mode=PreemptionMode.GROUPS if mode is PreemptionMode.AUTO else mode,
        prefix_caching=False,
        long_prefill_token_threshold=0,
        steps_in_flight=1,
        fencing=Fencing.OFF,
    )


def no_evict(limits: Limits) -> Limits:
    """The same sizes; a request starts only if all that run could reach their limits together.

    Nobody is ever preempted. Source: TensorRT-LLM's `GUARANTEED_NO_EVICT`.
    """
    return replace(
        limits,
        preset=Preset.NO_EVICT,
        rules=Rules(start=StartRule.RESERVE_TO_LIMIT, urgency=Urgency.WAITS),
        pressure=None,
    )


def ratio(limits: Limits, *, conservativeness: float = 1.0) -> Limits:
    """The same sizes with SGLang's output-aware admission and its retraction.

    Source: SGLang's `new_token_ratio` and `retract_decode`; victims are recomputed.
    """
    return replace(
        limits,
        preset=Preset.RATIO,
        rules=Rules(
            start=StartRule.TOKEN_RATIO,
            urgency=Urgency.WAITS,
            conservativeness=conservativeness,
        ),
        preemption_mode=PreemptionMode.RECOMPUTE,
    )
