"""`forebay bench`: an offline batch of random prompts, timed, as one JSON line or a table."""

import argparse
import hashlib
import json
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from forebay.cli.arguments import (
    add_model_arguments,
    add_preemption_argument,
    model_settings,
    not_negative,
    positive,
)
from forebay.config import MAX_STEPS_IN_FLIGHT, EngineConfig
from forebay.errors import ConfigError, ForebayError
from forebay.sampling_params import SamplingParams
from forebay.units import div_ceil

if TYPE_CHECKING:
    from forebay.engine.live import EngineStats
    from forebay.llm import LLM, RequestOutput

HELP = "time a batch of random prompts"
DESCRIPTION = (
    "Generates for a batch of prompts of random tokens, greedy and without stops, and reports "
    "speed, KV pressure and a digest of all output tokens. The same seed gives the same prompts: "
    "equal digests mean equal outputs."
)

_FIRST_TOKEN, _LAST_TOKEN = 20, 49_000
"""The range of prompt tokens: that of SmolLM2's vocabulary, without its special tokens."""


@dataclass(slots=True, frozen=True, kw_only=True)
class BenchResult:
    """What is reported, in the order in which it is printed. Means are over requests."""

    seconds: float
    output_tok_s: float
    ttft_ms: float
    tpot_ms: float
    kv_tokens_limit: int
    kv_tokens_peak: int
    preemptions_recompute: int
    preemptions_swap: int
    recomputed_tokens: int
    swapped_bytes: int
    outputs_sha256: str


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command line of `forebay bench`."""
    parser.add_argument("--requests", type=positive, default=32, metavar="N", help="(default: 32)")
    parser.add_argument(
        "--prompt", type=positive, default=128, metavar="P", help="tokens a prompt (default: 128)"
    )
    parser.add_argument(
        "--output", type=positive, default=128, metavar="O", help="tokens an output (default: 128)"
    )
    parser.add_argument(
        "--kv-tokens",
        type=positive,
        metavar="T",
        help="size of the KV pool in tokens (default: as much as the batch needs)",
    )
    add_preemption_argument(parser)
    parser.add_argument(
        "--swap-space", type=float, metavar="GIB", help="host memory for swapped blocks"
    )
    parser.add_argument(
        "--steps-in-flight",
        type=int,
        choices=range(1, MAX_STEPS_IN_FLIGHT + 1),
        default=EngineConfig().steps_in_flight,
        metavar="D",
        help="steps planned before the first one's results are back, 1 to 3 (default: %(default)s)",
    )
    parser.add_argument(
        "--max-num-seqs", type=positive, default=64, metavar="N", help="(default: 64)"
    )
    parser.add_argument(
        "--max-num-batched-tokens", type=positive, default=2048, metavar="N", help="(default: 2048)"
    )
    parser.add_argument(
        "--no-prefix-caching", action="store_true", help="share no blocks between prompts"
    )
    parser.add_argument("--seed", type=not_negative, default=0, help="of the prompts (default: 0)")
    parser.add_argument("--json", action="store_true", help="one JSON line instead of a table")
    add_model_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Runs the batch and prints the result."""
    from forebay.llm import LLM

    try:
        llm = LLM.from_config(bench_config(arguments))
    except ForebayError as error:
        if "max_model_len" in str(error):
            error.add_note("max_model_len is --prompt plus --output; --kv-tokens sizes the KV pool")
        raise
    with llm:
        print(llm.startup, file=sys.stderr)
        vocab_size = min(_LAST_TOKEN, llm.get_tokenizer().vocab_size)
        if vocab_size <= _FIRST_TOKEN:
            raise ConfigError(
                f"a vocabulary of {vocab_size} tokens is too small for this benchmark"
            )
        prompts = random_prompts(arguments.seed, arguments.requests, arguments.prompt, vocab_size)
        result = measure(llm, prompts, arguments.output)
    if arguments.json:
        print(json.dumps({field.name: getattr(result, field.name) for field in fields(result)}))
    else:
        print(table(result, arguments))
    return 0


def bench_config(arguments: argparse.Namespace) -> EngineConfig:
    """Settings under which the batch fits, unless `--kv-tokens` makes the pool smaller."""
    block_size = EngineConfig().block_size
    length = arguments.prompt + arguments.output
    num_together = min(arguments.requests, arguments.max_num_seqs)
    return EngineConfig.from_settings(
        {
            **model_settings(arguments),
            "max_model_len": length,
            "max_num_seqs": arguments.max_num_seqs,
            "max_num_batched_tokens": arguments.max_num_batched_tokens,
            "kv_tokens": arguments.kv_tokens
            or num_together * div_ceil(length, block_size) * block_size,
            "block_size": block_size,
            "preemption_mode": arguments.preemption,
            "swap_space": arguments.swap_space,
            "steps_in_flight": arguments.steps_in_flight,
            "enable_prefix_caching": not arguments.no_prefix_caching,
        }
    )


def random_prompts(seed: int, count: int, length: int, end: int) -> list[list[int]]:
    """`count` prompts of `length` tokens below `end`, the same for the same seed."""
    rng = random.Random(seed)
    return [[rng.randrange(_FIRST_TOKEN, end) for _ in range(length)] for _ in range(count)]


def measure(llm: "LLM", prompts: Sequence[Sequence[int]], num_output: int) -> BenchResult:
    """Times the batch once, after a short warm-up with other prompts that is not counted."""
    vocab_end = max(max(prompt) for prompt in prompts) + 1
    # No more of them than are measured, so that the peak is that of the batch.
    count = min(2, len(prompts))
    warm_up = random_prompts(-1, count, len(prompts[0]), max(vocab_end, _FIRST_TOKEN + 1))
    llm.generate(warm_up, greedy(min(4, num_output)))
    before = llm.stats()
    start = time.perf_counter()
    outputs = llm.generate(list(prompts), greedy(num_output))
    seconds = time.perf_counter() - start
    return summarize(llm, outputs, before, seconds)


def greedy(num_output: int) -> SamplingParams:
    """Exactly `num_output` tokens, the likeliest each."""
    return SamplingParams(temperature=0, max_tokens=num_output, ignore_eos=True)


def summarize(
    llm: "LLM", outputs: "Sequence[RequestOutput]", before: "EngineStats", seconds: float
) -> BenchResult:
    """The figures of one run that took `seconds`; `before`: how things stood when it began."""
    memory, after, earlier = llm.startup.memory, llm.stats().tally, before.tally
    swapped_blocks = (after.swapped_out_blocks - earlier.swapped_out_blocks) + (
        after.swapped_in_blocks - earlier.swapped_in_blocks
    )
    num_tokens = sum(len(one.token_ids) for output in outputs for one in output.outputs)
    return BenchResult(
        seconds=round(seconds, 4),
        output_tok_s=round(num_tokens / seconds, 2),
        ttft_ms=round(_mean([_ttft_ms(output) for output in outputs]), 2),
        tpot_ms=round(_mean([_tpot_ms(output) for output in outputs]), 2),
        kv_tokens_limit=memory.num_tokens,
        kv_tokens_peak=after.peak_active_blocks * memory.block_size,
        preemptions_recompute=after.preemptions_recompute - earlier.preemptions_recompute,
        preemptions_swap=after.preemptions_swap - earlier.preemptions_swap,
        recomputed_tokens=after.recomputed_tokens - earlier.recomputed_tokens,
        swapped_bytes=swapped_blocks * memory.block_bytes,
        outputs_sha256=outputs_digest(outputs),
    )


def outputs_digest(outputs: "Sequence[RequestOutput]") -> str:
    """SHA-256 over all output token ids in request order, as 4-byte little-endian numbers."""
    digest = hashlib.sha256()
    for output in outputs:
        for one in output.outputs:
            digest.update(b"".join(token.to_bytes(4, "little") for token in one.token_ids))
    return digest.hexdigest()


def table(result: BenchResult, arguments: argparse.Namespace) -> str:
    """The result for people."""
    rows = [
        ("requests", f"{arguments.requests} x ({arguments.prompt} prompt + {arguments.output})"),
        ("time", f"{result.seconds:.2f} s"),
        ("output", f"{result.output_tok_s:.1f} tokens/s"),
        ("time to first token", f"{result.ttft_ms:.0f} ms mean"),
        ("time per further token", f"{result.tpot_ms:.1f} ms mean"),
        ("KV pool", f"{result.kv_tokens_peak:,} of {result.kv_tokens_limit:,} tokens at the peak"),
        (
            "preemptions",
            f"{result.preemptions_recompute} by recompute, {result.preemptions_swap} by swap",
        ),
        ("recomputed", f"{result.recomputed_tokens:,} tokens"),
        ("swapped", f"{result.swapped_bytes / 2**20:,.1f} MiB"),
        ("outputs (sha256)", result.outputs_sha256),
    ]
    return "\n".join(f"{name:24}{value}" for name, value in rows)


def _ttft_ms(output: "RequestOutput") -> float:
    return 1e3 * (output.metrics.first_token_s or 0.0)


def _tpot_ms(output: "RequestOutput") -> float:
    metrics = output.metrics
    num_further = max(len(one.token_ids) for one in output.outputs) - 1
    if metrics.first_token_s is None or metrics.last_token_s is None or num_further < 1:
        return 0.0
    return 1e3 * (metrics.last_token_s - metrics.first_token_s) / num_further


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
