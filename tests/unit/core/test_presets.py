from dataclasses import replace

from forebay.core.limits import Fencing, Limits, Policy, PreemptionMode
from forebay.core.policies import Intake, Preset, Rules, StartRule, Urgency
from forebay.core.presets import no_evict, ratio, vllm_v0
from tests.support.driver import Job, play

SIZES = Limits(num_blocks=12, block_size=4, num_host_blocks=12, expected_output_share=0.0)


def test_the_default_rules_are_ours() -> None:
    assert SIZES.preset is Preset.FOREBAY
    assert SIZES.rules == Rules()


def test_v0_chooses_by_group_unless_told_otherwise() -> None:
    assert vllm_v0(SIZES).preemption_mode is PreemptionMode.GROUPS
    forced = Limits(num_blocks=12, block_size=4, preemption_mode=PreemptionMode.SWAP)
    assert vllm_v0(forced).preemption_mode is PreemptionMode.SWAP


def test_v0_has_no_cache_one_step_in_flight_and_judges_at_admission() -> None:
    limits = vllm_v0(Limits(num_blocks=12, block_size=4, steps_in_flight=3), delay_factor=0.5)
    assert (limits.prefix_caching, limits.steps_in_flight) == (False, 1)
    assert limits.fencing is Fencing.OFF
    assert limits.rules.intake is Intake.CLAMP
    assert limits.rules.prompt_delay is not None
    assert limits.rules.prompt_delay.factor == 0.5
    assert vllm_v0(SIZES).rules.prompt_delay is None


CROWD = [Job(prompt=tuple(range(at, at + 6)), max_tokens=14, at=at) for at in range(6)]


def test_no_evict_runs_fewer_at_once_and_preempts_nobody() -> None:
    ours, reserved = play(SIZES, CROWD), play(no_evict(SIZES), CROWD)
    assert ours.preempted
    assert reserved.preempted == []
    # 19 of 20 tokens are computed: 5 of 12 blocks each
    assert max(step.num_rows for step in reserved.steps) == 2


def test_no_evict_does_not_evict_for_urgency_either() -> None:
    limits = no_evict(Limits(num_blocks=12, block_size=4, policy=Policy.PRIORITY, max_num_seqs=2))
    jobs = [*CROWD[:3], Job(prompt=(1, 2, 3), max_tokens=4, at=5, priority=-1)]
    world = play(limits, jobs)
    assert world.preempted == []
    assert limits.rules.start is StartRule.RESERVE_TO_LIMIT


def test_ratio_recomputes_whoever_generated_least() -> None:
    may_stop = [replace(job, stop_every=40_009) for job in CROWD]  # but hardly does
    world = play(ratio(SIZES, conservativeness=0.01), may_stop)
    assert world.preempted
    assert {event.how.value for event in world.preempted} == {"recompute"}
    assert ratio(SIZES).rules.urgency is Urgency.WAITS
