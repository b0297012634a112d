"""`forebay demo`: 48 real prompts with a third of the KV memory they need, four times.

Once without pressure, then with each way of preempting. The point is the last column: whatever
the pool, the outputs are the same, token by token.
"""

import argparse
import dataclasses
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from typing import TYPE_CHECKING

from forebay.cli.arguments import add_model_arguments, model_settings
from forebay.config import EngineConfig
from forebay.errors import ConfigError
from forebay.sampling_params import SamplingParams
from forebay.units import div_ceil

if TYPE_CHECKING:
    from forebay.cli.screen import Screen
    from forebay.engine.live import EngineStats
    from forebay.llm import LLM, RequestOutput
    from forebay.text import TextTokenizer

HELP = "48 prompts with a third of the KV memory that they need"
DESCRIPTION = (
    "Runs 48 real prompts of mixed length four times: with all the KV memory they need, then with "
    "a third of it and preemption by recompute, by swap and by whichever is cheaper. Shows speed, "
    "preemptions, and whether every output is identical to the run without pressure."
)

SHARE = 3
"""The pool is the need divided by this."""
FREE = "no pressure"
MODES = ("recompute", "swap", "auto")
_SHOWN_ANSWERS = (14, 34, 40)


@dataclass(slots=True, frozen=True)
class DemoPrompt:
    """One prompt and how long its answer may get."""

    prompt: str
    max_tokens: int


@dataclass(slots=True, frozen=True, kw_only=True)
class DemoRun:
    """What one of the four runs came to."""

    name: str
    kv_tokens_limit: int
    kv_tokens_peak: int
    seconds: float
    output_tok_s: float
    preemptions_recompute: int
    preemptions_swap: int
    recomputed_tokens: int
    swapped_bytes: int
    num_identical: int
    """Requests whose output is that of the run without pressure, token by token."""


@dataclass(slots=True, frozen=True)
class Job:
    """The prompts as token ids, and what each is allowed to generate."""

    prompts: list[list[int]]
    params: list[SamplingParams]
    texts: list[str]

    def need_blocks(self, block_size: int) -> int:
        """Blocks that all requests together need at their longest."""
        return sum(self.blocks_each(block_size))

    def blocks_each(self, block_size: int) -> list[int]:
        """Blocks of each request at its longest; its last token needs no slot."""
        return [
            div_ceil(len(prompt) + (params.max_tokens or 1) - 1, block_size)
            for prompt, params in zip(self.prompts, self.params, strict=True)
        ]

    @property
    def longest(self) -> int:
        """Tokens of the longest prompt with its output."""
        pairs = zip(self.prompts, self.params, strict=True)
        return max(len(prompt) + (params.max_tokens or 1) for prompt, params in pairs)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command line of `forebay demo`."""
    parser.add_argument("--json", action="store_true", help="one JSON line instead of the tables")
    add_model_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Runs all four, shows them, and fails if any output differs."""
    from forebay.cli.screen import Screen
    from forebay.startup import find_tokenizer

    settings = model_settings(arguments)
    job = load_job(find_tokenizer(EngineConfig.from_settings(settings)))
    screen = Screen(is_quiet=arguments.json)
    block_size = EngineConfig().block_size
    need = job.need_blocks(block_size)
    tight = max(need // SHARE, max(job.blocks_each(block_size)))
    screen.introduce(len(job.prompts), need * block_size, tight * block_size)
    runs: list[DemoRun] = []
    first: list[RequestOutput] = []
    for name in (FREE, *MODES):
        config = demo_config(settings, job, need if name == FREE else tight, name)
        outcome, outputs = run_once(name, config, job, first, screen)
        first = first or outputs
        runs.append(outcome)
        screen.finished(outcome, len(job.prompts))
    if arguments.json:
        print(json.dumps(as_json(runs, need * block_size, len(job.prompts))))
    else:
        screen.answers([(job.texts[at], first[at].outputs[0]) for at in _SHOWN_ANSWERS])
        screen.table(runs, len(job.prompts))
    return 0 if all(one.num_identical == len(job.prompts) for one in runs) else 1


def load_prompts() -> list[DemoPrompt]:
    """The prompts that come with the package."""
    file = resources.files("forebay.cli").joinpath("demo_prompts.json")
    return [DemoPrompt(**entry) for entry in json.loads(file.read_text(encoding="utf-8"))]


def load_job(tokenizer: "TextTokenizer") -> Job:
    """The prompts through the model's chat template; greedy answers."""
    if tokenizer.chat_template is None:
        raise ConfigError("the demo talks to the model, but this one has no chat template")
    found = load_prompts()
    return Job(
        prompts=[tokenizer.encode_chat([{"role": "user", "content": one.prompt}]) for one in found],
        params=[SamplingParams(temperature=0, max_tokens=one.max_tokens) for one in found],
        texts=[one.prompt for one in found],
    )


def demo_config(settings: dict[str, object], job: Job, num_blocks: int, name: str) -> EngineConfig:
    """All prompts at once in a pool of `num_blocks`; the free run never preempts."""
    return EngineConfig.from_settings(
        {
            **settings,
            "num_gpu_blocks_override": num_blocks,
            "max_model_len": job.longest,
            "max_num_seqs": len(job.prompts),
            "preemption_mode": "recompute" if name == FREE else name,
        }
    )


def run_once(
    name: str,
    config: EngineConfig,
    job: Job,
    expected: "Sequence[RequestOutput]",
    screen: "Screen",
) -> "tuple[DemoRun, list[RequestOutput]]":
    """One run, compared with `expected`, or with itself if that is empty."""
    from forebay.llm import LLM

    with screen.loading(name):
        llm = LLM.from_config(config)
    with llm:
        if not expected:
            screen.started(llm)
        before = llm.stats()
        start = time.perf_counter()
        with screen.watch(name, llm, len(job.prompts)):
            outputs = llm.generate(list(job.prompts), job.params)
        seconds = time.perf_counter() - start
        outcome = _outcome(name, llm, before, outputs, seconds)
    pairs = zip(outputs, expected or outputs, strict=True)
    same = sum(one.outputs[0].token_ids == other.outputs[0].token_ids for one, other in pairs)
    return dataclasses.replace(outcome, num_identical=same), outputs


def _outcome(
    name: str, llm: "LLM", before: "EngineStats", outputs: "Sequence[RequestOutput]", seconds: float
) -> DemoRun:
    from forebay.cli.bench import summarize

    result = summarize(llm, outputs, before, seconds)
    return DemoRun(
        name=name,
        kv_tokens_limit=result.kv_tokens_limit,
        kv_tokens_peak=result.kv_tokens_peak,
        seconds=result.seconds,
        output_tok_s=result.output_tok_s,
        preemptions_recompute=result.preemptions_recompute,
        preemptions_swap=result.preemptions_swap,
        recomputed_tokens=result.recomputed_tokens,
        swapped_bytes=result.swapped_bytes,
        num_identical=0,
    )


def as_json(runs: Sequence[DemoRun], kv_tokens_need: int, num_prompts: int) -> dict[str, object]:
    """The whole demo for machines."""
    return {
        "prompts": num_prompts,
        "kv_tokens_need": kv_tokens_need,
        "outputs_identical": all(one.num_identical == num_prompts for one in runs),
        "runs": [dataclasses.asdict(one) for one in runs],
    }
