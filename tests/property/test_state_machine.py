"""Hypothesis sends calls in any legal order; what it finds, it shrinks to the shortest story."""

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from forebay.core.limits import ArtificialPressure, Fencing, Limits, Policy, PreemptionMode
from forebay.units import RequestId
from tests.support.driver import Job, World

PRESSURE = st.builds(
    ArtificialPressure,
    seed=st.integers(0, 9),
    probability=st.sampled_from([0.5, 1.0]),
    max_refusals=st.sampled_from([2, 20]),
)
LIMITS = st.builds(
    Limits,
    num_blocks=st.integers(2, 20),
    block_size=st.sampled_from([1, 2, 4]),
    num_host_blocks=st.sampled_from([0, 2, 20]),
    max_num_seqs=st.sampled_from([1, 3, 8]),
    max_num_batched_tokens=st.sampled_from([8, 32]),
    max_model_len=st.sampled_from([20, 200]),
    long_prefill_token_threshold=st.sampled_from([0, 3]),
    watermark=st.sampled_from([0.0, 0.2]),
    prefix_caching=st.booleans(),
    policy=st.sampled_from(Policy),
    preemption_mode=st.sampled_from(PreemptionMode),
    steps_in_flight=st.integers(1, 3),
    fencing=st.sampled_from(Fencing),
    pressure=st.none() | PRESSURE,
    expected_output_share=st.sampled_from([0.0, 0.75]),
    max_preemption_lead=st.sampled_from([1, 3]),
)


class AnyOrder(RuleBasedStateMachine):
    """One scheduler, audited after each call; at the end everything runs out and is checked."""

    @initialize(limits=LIMITS)
    def start(self, limits: Limits) -> None:
        self.world = World(limits)

    @rule(
        shared=st.sampled_from([0, 4, 9]),
        own=st.lists(st.integers(0, 3), min_size=1, max_size=8),
        max_tokens=st.integers(1, 24),
        n=st.sampled_from([1, 1, 2, 3]),
        priority=st.sampled_from([0, 0, 1]),
        stop_every=st.sampled_from([0, 0, 7]),
    )
    def submit(
        self, shared: int, own: list[int], max_tokens: int, n: int, priority: int, stop_every: int
    ) -> None:
        prompt = tuple(range(shared)) + tuple(own)
        self.world.submit(Job(prompt, max_tokens, n=n, priority=priority, stop_every=stop_every))

    @rule(after=st.integers(0, 12))
    def submit_with_deadline(self, after: int) -> None:
        self.world.submit(Job((1, 2, 3, 4, 5), 20, deadline=self.world.now + after))

    @precondition(lambda self: self.world.jobs)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        self.world.abort(RequestId(data.draw(st.integers(0, len(self.world.jobs) - 1))))

    @rule()
    def plan(self) -> None:
        depth = len(self.world.in_flight)
        step = self.world.plan()
        assert step is None or depth < self.world.limits.steps_in_flight

    @precondition(lambda self: self.world.in_flight)
    @rule()
    def finish_step(self) -> None:
        self.world.finish_step()

    @rule(turns=st.integers(1, 12))
    def go_on(self, turns: int) -> None:
        for _ in range(turns):
            self.world.turn()

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.run()


AnyOrder.TestCase.settings = settings(
    derandomize=True,
    max_examples=200,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
TestAnyOrder = AnyOrder.TestCase
