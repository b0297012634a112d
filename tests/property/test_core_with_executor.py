"""The scheduler against the bookkeeping of the real executor, which checks each step's promises.

The random driver uses a shadow executor of its own; here the ledger that the live runner uses
performs the steps, on symbolic block contents, so that both sides agree on what a `Step` means.
"""

import random
from collections import deque

import pytest

from forebay.block_hash import chain_hash, prompt_hashes
from forebay.core.audit import audit, audit_step
from forebay.core.effects import Ended, Refuse, Step
from forebay.core.events import Abort, Arrive, FinishReason, StepDone
from forebay.core.limits import Limits
from forebay.core.scheduler import Scheduler
from forebay.engine.ports import ExecRequest
from forebay.exec.null import BlockContents, NullExecutor, null_tokens
from forebay.sampling_params import SamplingParams
from forebay.units import Nanos, RequestId, SeqId, branch_of, request_of
from tests.support.driver import Job, random_jobs, random_limits

VOCAB = 211
STOP = 7


class Drive:
    """Runs jobs on a scheduler and a null executor; keeps each sequence's tokens."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.core = Scheduler(limits)
        contents = BlockContents(
            block_size=limits.block_size,
            num_blocks=limits.num_blocks,
            num_host_blocks=limits.num_host_blocks,
        )
        self.executor = NullExecutor(
            block_size=limits.block_size,
            max_num_seqs=limits.max_num_seqs,
            num_blocks=limits.num_blocks,
            vocab_size=VOCAB,
            contents=contents,
        )
        self.jobs: dict[RequestId, Job] = {}
        self.tokens: dict[SeqId, list[int]] = {}
        self.ended: dict[SeqId, Ended] = {}
        self.in_flight: deque[Step] = deque()
        self.now = Nanos(0)

    def submit(self, job: Job) -> None:
        rid = RequestId(len(self.jobs))
        self.jobs[rid] = job
        root = b"root" * 4
        hashes: tuple[bytes, ...] = ()
        if self.limits.prefix_caching:
            hashes = prompt_hashes(root, job.prompt, self.limits.block_size)
        arrive = Arrive(
            request_id=rid,
            arrival_ns=self.now,
            num_prompt=len(job.prompt),
            max_tokens=job.max_tokens,
            num_branches=job.n,
            priority=job.priority,
            block_hashes=hashes,
        )
        effects = self.core.handle(arrive, self.now)
        if any(isinstance(effect, Refuse) for effect in effects):
            return
        last = (hashes or (root,))[-1] if self.limits.prefix_caching else None
        stop_ids = frozenset({STOP} if job.stop_every else ())
        self.executor.add(
            ExecRequest(
                request_id=rid,
                prompt_token_ids=job.prompt,
                sampling=SamplingParams(n=job.n, temperature=0.0, max_tokens=job.max_tokens),
                seed=0,
                stop_token_ids=stop_ids,
                last_hash=last,
            )
        )

    def turn(self) -> None:
        self.now = Nanos(self.now + 1)
        while (step := self.core.plan(self.now)) is not None:
            assert audit_step(self.core, step) == []
            self.in_flight.append(step)
        assert audit(self.core) == []
        if self.in_flight:
            result = self.executor.execute(self.in_flight.popleft())
            for seq, token in zip(result.seq_ids, result.token_ids, strict=True):
                self.tokens.setdefault(seq, []).append(token)
            for filled in result.filled:
                self._check_hash(filled.seq_id, filled.index, filled.hash)
            done = StepDone(seq=result.seq, stops=tuple(result.stops), filled=tuple(result.filled))
            self._note(self.core.handle(done, self.now))

    def abort(self, rid: RequestId) -> None:
        self._note(self.core.handle(Abort(request_id=rid), self.now))

    def _note(self, effects: list) -> None:
        for effect in effects:
            assert effect.seq_id not in self.ended
            self.ended[effect.seq_id] = effect

    def _check_hash(self, seq: SeqId, index: int, digest: bytes) -> None:
        all_tokens = [*self.jobs[request_of(seq)].prompt, *self.tokens[seq]]
        size = self.limits.block_size
        parent = b"root" * 4
        for start in range(0, (index + 1) * size, size):
            parent = chain_hash(parent, all_tokens[start : start + size])
        assert parent == digest

    def check_end(self) -> None:
        for seq, ended in self.ended.items():
            got = self.tokens.get(seq, [])[: ended.num_output]
            want = expected(seq, self.jobs[request_of(seq)])
            assert got == want[: len(got)]
            if ended.reason in (FinishReason.STOP, FinishReason.LENGTH):
                room = self.limits.max_model_len - len(self.jobs[request_of(seq)].prompt)
                assert got == want[:room]
        gauges = self.core.gauges()
        assert gauges.blocks_active == gauges.host_used == 0


def expected(seq: SeqId, job: Job) -> list[int]:
    """What the null executor yields for a sequence without any pressure."""

    class Buffer:
        seq_id = seq
        branch = branch_of(seq)
        num_output = 0

    out: list[int] = []
    while len(out) < job.max_tokens:
        Buffer.num_output = len(out)
        out += null_tokens([Buffer], VOCAB)  # type: ignore[list-item]  # what it reads is there
        if job.stop_every and out[-1] == STOP:
            break
    return out


@pytest.mark.parametrize("chunk", range(8))
def test_the_executor_finds_no_broken_promise(chunk: int) -> None:
    for seed in range(chunk, 320, 8):
        rng = random.Random(70_000 + seed)
        drive = Drive(random_limits(rng))
        jobs = random_jobs(rng, rng.randint(1, 10))
        for at in range(2_000):
            for job in jobs:
                if job.at == at:
                    drive.submit(job)
            for rid, job in drive.jobs.items():
                if job.abort_at == at and rid in drive.core.requests:
                    drive.abort(rid)
            drive.turn()
            if at > 70 and not drive.core.has_work and not drive.in_flight:
                break
        assert not drive.core.has_work, f"workload {seed} did not end"
        drive.check_end()
