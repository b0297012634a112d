"""Logits and sequences for tests of the sampler."""

import numpy as np
import torch

from forebay.exec.ledger import Work
from forebay.exec.token_buffers import TokenBuffers
from forebay.sampling_params import SamplingParams
from forebay.units import SeqId
from tests.unit.exec.script import request

VOCAB = 2000


def logits_of(num_rows, vocab=VOCAB, seed=0, spread=3.0):
    return torch.randn(num_rows, vocab, generator=torch.Generator().manual_seed(seed)) * spread


def row_of(*values):
    return np.array(values, np.float32)


def buffer_of(number=0, output=(), branch=0, **options):
    buffers = TokenBuffers()
    buffers.add(request(number, **options))
    buffer = buffers.of(SeqId(number * 8))
    if branch:
        buffer = buffers.fork(buffer, SeqId(number * 8 + branch))
    for token in output:
        buffer.append(token)
    return buffer


def work_of(buffers, logits_rows=None):
    """Only what sampling looks at."""
    rows = np.arange(len(buffers)) if logits_rows is None else np.array(logits_rows)
    special = [at for at, buffer in enumerate(buffers) if buffer.needs_more_than_argmax]
    nothing = np.empty(0, np.int32)
    return Work(
        token_ids=nothing,
        positions=nothing,
        token_rows=nothing,
        sample_at=nothing,
        sample_rows=nothing,
        logits_rows=rows.astype(np.int32),
        buffers=buffers,
        special=np.array(special, np.int32),
    )


def params(**fields):
    return SamplingParams(**fields)
