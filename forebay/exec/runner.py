"""Performs the scheduler's steps on a device: copies blocks, runs the model, samples."""

import time
from collections.abc import Sequence
from itertools import groupby

from torch import Tensor

from forebay.core.effects import Clone, Copy, Step, SwapIn, SwapOut
from forebay.core.limits import Costs
from forebay.engine.ports import ExecRequest, StepResult
from forebay.errors import DeviceFault
from forebay.exec.costs import measure_costs
from forebay.exec.kv_tensors import KvTensors
from forebay.exec.ledger import Ledger, Work
from forebay.exec.paged_model import FlatBatch, Model, PagedModel
from forebay.exec.sampler import Drawn, sample
from forebay.units import Nanos


class Runner:
    """An `Executor` with a model. Used from one thread only."""

    def __init__(self, *, model: Model, pools: KvTensors, max_num_seqs: int) -> None:
        self._paged_model: PagedModel | None = PagedModel(model=model, pools=pools)
        self.ledger = Ledger(
            block_size=pools.layout.block_size,
            max_num_seqs=max_num_seqs,
            num_blocks=pools.num_blocks,
        )

    def measure_costs(self, *, max_chunk_tokens: int) -> Costs:
        """What prefill, decode and swap cost here; before the first request, in about a second."""
        return measure_costs(self._open(), max_chunk_tokens=max_chunk_tokens)

    def add(self, request: ExecRequest) -> None:
        """Takes a request's tokens and sampling parameters."""
        self.ledger.add(request)

    def execute(self, step: Step) -> StepResult:
        """Performs one step and blocks until its tokens are known.

        Raises `DeviceFault` when the device or the model fails, `InvariantError` when the step
        breaks a promise; after either, no further step makes sense.
        """
        paged_model = self._open()
        work = self.ledger.begin(step)
        drawn = Drawn([])
        try:
            perform_copies(step.copies, paged_model.pools)
            start = time.perf_counter_ns()
            logits = self._logits(paged_model, work)
            model_ns = Nanos(time.perf_counter_ns() - start)
            if logits is not None:
                drawn = sample(logits, work)
        except (RuntimeError, MemoryError) as error:
            raise DeviceFault(f"step {step.seq} failed on {paged_model.device}: {error}") from error
        result = self.ledger.finish(step, work, drawn.token_ids)
        result.logprobs = drawn.logprobs
        result.model_ns = model_ns
        return result

    def close(self) -> None:
        """Lets go of the model and its pools. Idempotent."""
        self._paged_model = None

    def _open(self) -> PagedModel:
        if self._paged_model is None:
            raise DeviceFault("the executor is closed")
        return self._paged_model

    def _logits(self, paged_model: PagedModel, work: Work) -> Tensor | None:
        if not len(work.token_ids):
            return None
        batch = self.ledger.batch
        return paged_model.logits(
            FlatBatch(
                token_ids=work.token_ids,
                positions=work.positions,
                token_rows=work.token_rows,
                slots=batch.slots(work.token_rows, work.positions),
                block_tables=batch.block_tables[: batch.num_rows],
                sample_at=work.sample_at,
            )
        )


def perform_copies(copies: Sequence[Copy], pools: KvTensors) -> None:
    """Performs copies in list order, one call for neighbours of one kind."""
    for kind, run in groupby(copies, key=type):
        pairs = [_ends(copy) for copy in run]
        sources = [source for source, _ in pairs]
        targets = [target for _, target in pairs]
        if kind is SwapOut:
            pools.swap_out(sources, targets)
        elif kind is SwapIn:
            pools.swap_in(sources, targets)
        else:
            pools.copy_blocks(sources, targets)


def _ends(copy: Copy) -> tuple[int, int]:
    """Where a copy reads and where it writes."""
    match copy:
        case SwapOut(block=source, slot=target) | SwapIn(slot=source, block=target):
            return source, target
        case Clone(src=source, dst=target):
            return source, target
