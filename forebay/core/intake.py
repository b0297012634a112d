"""May it join the queue? Looks at the pool's size, never at what is free."""

from dataclasses import dataclass

from forebay.core.effects import Capped, Refuse, RefuseReason
from forebay.core.events import Arrive, FinishReason
from forebay.core.limits import Limits, Policy
from forebay.core.policies import Intake
from forebay.core.request import Request, new_request
from forebay.units import MAX_BRANCHES


@dataclass(slots=True, frozen=True)
class Join:
    """It may wait; `capped` tells the caller if its output cannot be as long as it asked."""

    request: Request
    capped: Capped | None


def judge(spec: Arrive, limits: Limits) -> Join | Refuse:
    """Refuses what can never start, and caps what could start but never end."""
    fault = _shape_fault(spec, limits)
    if fault:
        return Refuse(spec.request_id, RefuseReason.BAD_SHAPE, fault)
    if limits.rules.intake is not Intake.JUDGE:
        return _join(spec, limits, None)
    if spec.num_prompt >= limits.max_model_len:
        message = (
            f"the prompt has {spec.num_prompt} tokens; with max_model_len {limits.max_model_len} "
            f"at most {limits.max_model_len - 1} fit, so that one can be generated"
        )
        return Refuse(spec.request_id, RefuseReason.TOO_LONG, message)
    if not limits.chunked_prefill and spec.num_prompt > limits.max_num_batched_tokens:
        message = (
            f"the prompt has {spec.num_prompt} tokens; without chunked prefill at most "
            f"max_num_batched_tokens {limits.max_num_batched_tokens} fit in a step"
        )
        return Refuse(spec.request_id, RefuseReason.TOO_LONG, message)
    fitting = limits.longest_group(spec.num_prompt, spec.num_branches)
    if fitting <= spec.num_prompt:
        return Refuse(spec.request_id, RefuseReason.NEVER_FITS, _arithmetic(spec, limits))
    return _join(spec, limits, fitting)


def _shape_fault(spec: Arrive, limits: Limits) -> str | None:
    if spec.num_prompt < 1:
        return "the prompt is empty: at least one token is needed"
    if spec.max_tokens < 1:
        return f"max_tokens is {spec.max_tokens}: at least 1 is needed"
    if not 1 <= spec.num_branches <= min(MAX_BRANCHES, limits.max_branches):
        most = min(MAX_BRANCHES, limits.max_branches)
        return f"n is {spec.num_branches}: 1 to {most} sequences are possible"
    if spec.external_tokens and (spec.num_branches > 1 or spec.external_tokens > spec.num_prompt):
        return (
            f"external_tokens is {spec.external_tokens}: only a single sequence can be loaded, "
            f"and at most its {spec.num_prompt} prompt tokens"
        )
    if limits.rules.intake is Intake.TAKE_ALL:
        return None
    if spec.num_branches > limits.max_num_seqs:
        return f"n is {spec.num_branches}, more than max_num_seqs {limits.max_num_seqs}"
    if spec.num_branches > limits.max_num_batched_tokens:
        return (
            f"n is {spec.num_branches}, more than "
            f"max_num_batched_tokens {limits.max_num_batched_tokens}"
        )
    return None


def _arithmetic(spec: Arrive, limits: Limits) -> str:
    need = limits.blocks_for_group(spec.num_prompt, spec.num_prompt, spec.num_branches)
    return (
        f"{spec.num_branches} sequence(s) of {spec.num_prompt} prompt tokens need {need} blocks "
        f"of {limits.block_size} tokens before the first output token; the pool has "
        f"{limits.num_blocks}"
    )


def _join(spec: Arrive, limits: Limits, fitting: int | None) -> Join:
    """`fitting`: the longest that the pool can hold, None if that is not asked."""
    wanted = spec.num_prompt + spec.max_tokens
    if limits.rules.intake is not Intake.TAKE_ALL:
        wanted = max(spec.num_prompt + 1, min(wanted, limits.max_model_len))
    limit, reason, capped = wanted, FinishReason.LENGTH, None
    if fitting is not None and fitting < wanted:
        limit, reason = fitting, FinishReason.KV_CAPACITY
        message = (
            f"asked for up to {wanted} tokens a sequence, but {spec.num_branches} sequence(s) of "
            f"{fitting} fill the whole pool of {limits.num_blocks} blocks of {limits.block_size}: "
            f"output is capped at {fitting - spec.num_prompt} tokens"
        )
        capped = Capped(spec.request_id, fitting - spec.num_prompt, message)
    priority = spec.priority if limits.policy is Policy.PRIORITY else 0
    return Join(new_request(spec, limit, reason, priority), capped)
