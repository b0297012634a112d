"""`LLM` and `AsyncLLM` over the executor without a model, with a tokenizer of single bytes."""

from collections.abc import Callable
from functools import cache
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from forebay.config import EngineConfig
from forebay.core.limits import Costs, Limits
from forebay.engine.device_thread import DeviceThread
from forebay.engine.live import EngineParts, LiveEngine
from forebay.engine.ports import Executor
from forebay.engine.requests import Vocabulary
from forebay.exec.null import NullExecutor
from forebay.memory_plan import GIB, MIB, MemoryFacts, plan_memory
from forebay.startup import Started, StartupReport, limits_of, text_maker
from forebay.text import TextTokenizer
from forebay.text.special_tokens import LoadedTokenizer, SpecialTokens

CHATML = (
    "{% for message in messages %}<|start|>{{ message['role'] }}:{{ message['content'] }}<|end|>"
    "{% endfor %}{% if add_generation_prompt %}<|start|>assistant:{% endif %}"
)
KV_BYTES = 64


@cache
def byte_tokenizer() -> TextTokenizer:
    """One token for each byte, then `<|start|>` and `<|end|>`, of which the latter ends."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE(vocab={one: at for at, one in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken("<|start|>"), AddedToken("<|end|>")])
    special = SpecialTokens(
        bos_id=None,
        eos_ids=(backend.token_to_id("<|end|>"),),
        bos_token=None,
        eos_token="<|end|>",
        unk_token=None,
        pad_token=None,
    )
    return TextTokenizer(
        LoadedTokenizer(tokenizer=backend, special=special, chat_templates={"default": CHATML})
    )


def start_null(
    config: EngineConfig, wrap: Callable[[Executor], Any] = lambda executor: executor
) -> Started:
    """What `forebay.startup.start` does, with a real memory plan and no model."""
    tokenizer = byte_tokenizer()
    facts = MemoryFacts(
        weights=64 * MIB,
        activations=16 * MIB,
        kv_per_token=KV_BYTES,
        host_free=8 * GIB,
        device_free=8 * GIB,
        device_total=8 * GIB,
        longest_exact=512,
    )
    plan = plan_memory(config, facts)
    limits = limits_of(config, plan, Costs())
    engine = LiveEngine(
        EngineParts(
            limits=limits,
            executor=wrap(_executor(limits, tokenizer.vocab_size)),
            device=DeviceThread(),
            vocabulary=Vocabulary(
                size=tokenizer.vocab_size,
                eos_token_ids=frozenset(tokenizer.eos_token_ids),
                block_size=config.block_size,
                prefix_root=b"root" if limits.prefix_caching else None,
            ),
            new_text=text_maker(tokenizer),
            token_text=tokenizer.token_text,
            seed=config.seed,
        )
    )
    report = StartupReport(
        model="null",
        architecture="llama",
        num_parameters=1,
        device=config.device,
        dtype=config.dtype,
        num_threads=1,
        products="none",
        memory=plan,
        costs=Costs(),
        seconds=0.1,
    )
    return Started(engine=engine, tokenizer=tokenizer, config=config, report=report)


def _executor(limits: Limits, vocab_size: int) -> NullExecutor:
    return NullExecutor(
        block_size=limits.block_size,
        max_num_seqs=limits.max_num_seqs,
        num_blocks=limits.num_blocks,
        vocab_size=vocab_size,
    )
