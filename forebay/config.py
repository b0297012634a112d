"""Everything a user may set, once, before start. Frozen; `check` reports every fault at once.

Names and meanings are vLLM's where it has the setting. What is measured at start (how many blocks
fit, what a step costs) is not here: `forebay.startup` turns settings and facts into the limits
that the machine is built with. `docs/reference/settings.md` lists unit, default and source.
"""

import dataclasses
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Self

from forebay.errors import ConfigError

DEVICES = ("cpu", "cuda")
DTYPES = ("float32", "bfloat16", "float16")
PREEMPTION_MODES = ("recompute", "swap", "auto")
SCHEDULING_POLICIES = ("fcfs", "priority")
MAX_STEPS_IN_FLIGHT = 3


@dataclass(slots=True, frozen=True, kw_only=True)
class EngineConfig:
    """The settings of one engine."""

    model: str | None = None
    """A GGUF file or a Hugging Face directory; None: the embedded SmolLM2-135M-Instruct."""
    tokenizer: str | None = None
    """Where the tokenizer is, if not with the model."""
    dtype: str = "float32"
    """Number format of weights, activations and KV."""
    device: str = "cpu"
    max_model_len: int | None = None
    """Longest prompt plus output, tokens; None: what the model was made for; -1: what fits."""
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 2048
    block_size: int = 16
    num_gpu_blocks_override: int | None = None
    """Size of the KV pool, blocks. One of the three ways to give it; by default it is derived."""
    kv_tokens: int | None = None
    """Size of the KV pool, tokens, rounded down to whole blocks."""
    kv_cache_memory_bytes: int | None = None
    """Size of the KV pool, bytes, rounded down to whole blocks."""
    gpu_memory_utilization: float = 0.9
    """Share of the device's memory for weights, activations and KV together. `cuda` only."""
    swap_space: float | None = None
    """Host memory for swapped blocks, GiB; None: as large as the KV pool, 1 to 4, less if less is
    useful or free. Not taken with `preemption_mode="recompute"`."""
    preemption_mode: str = "auto"
    scheduling_policy: str = "fcfs"
    enable_prefix_caching: bool = True
    enable_chunked_prefill: bool = True
    long_prefill_token_threshold: int = 0
    """Most prompt tokens of one request in one step; 0: `max_num_batched_tokens`."""
    watermark: float = 0.0
    """Share of the KV pool that admission keeps free while something runs."""
    expected_output_share: float = 0.75
    """Share of the output still possible that admission expects; 0: start whatever fits now."""
    max_preemption_lead: int = 3
    """No request is preempted more than this many times more often than an equal peer."""
    steps_in_flight: int = 1
    """Steps planned ahead of their results. vLLM's `async_scheduling` is 2."""
    seed: int = 0
    """For requests that bring no seed of their own."""
    num_threads: int | None = None
    """CPU threads for the model; None: all that this process may use."""
    artificial_preemption: bool = False
    """Refuse allocations at random, so that preemption runs under any load. For tests."""
    artificial_preemption_probability: float = 0.5
    artificial_preemption_max: int = 500
    artificial_preemption_seed: int = 0

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> Self:
        """Builds and checks settings given by name; an unknown name is a `ConfigError`."""
        known = [field.name for field in dataclasses.fields(cls)]
        config = cls(**{name: value for name, value in settings.items() if name in known})
        unknown = [_unknown_setting(name, known) for name in settings if name not in known]
        if faults := [*unknown, *config._faults()]:
            raise ConfigError("\n".join(faults))
        return config

    def check(self) -> None:
        """Raises `ConfigError` with every fault, one a line, if there is any."""
        if faults := self._faults():
            raise ConfigError("\n".join(faults))

    @property
    def chunk_limit(self) -> int:
        """Most prompt tokens of one request in one step: never above the budget of a step."""
        threshold = self.long_prefill_token_threshold or self.max_num_batched_tokens
        return min(threshold, self.max_num_batched_tokens)

    def _faults(self) -> list[str]:
        alone = self._faults_of_kind() | self._faults_of_range()
        return [*alone.values(), *self._faults_together(alone.keys())]

    def _faults_of_kind(self) -> dict[str, str]:
        choices = {
            "device": DEVICES,
            "dtype": DTYPES,
            "preemption_mode": PREEMPTION_MODES,
            "scheduling_policy": SCHEDULING_POLICIES,
        }
        faults = {
            name: f"{name} must be one of {', '.join(allowed)}; got {getattr(self, name)!r}"
            for name, allowed in choices.items()
            if getattr(self, name) not in allowed
        }
        for name in ("enable_prefix_caching", "enable_chunked_prefill", "artificial_preemption"):
            if not isinstance(getattr(self, name), bool):
                faults[name] = f"{name} must be True or False; got {getattr(self, name)!r}"
        for name in ("model", "tokenizer"):
            if not isinstance(getattr(self, name), str | None):
                faults[name] = f"{name} must be a path as text; got {getattr(self, name)!r}"
        return faults

    def _faults_of_range(self) -> dict[str, str]:
        return {
            name: fault
            for name, (is_right, wanted, may_be_none) in _RANGES.items()
            if (fault := _range_fault(name, getattr(self, name), is_right, wanted, may_be_none))
        }

    def _faults_together(self, wrong: Set[str]) -> list[str]:
        """Between settings; those that are `wrong` by themselves are not compared."""
        faults = []
        sizes = ("num_gpu_blocks_override", "kv_tokens", "kv_cache_memory_bytes")
        given = [name for name in sizes if getattr(self, name) is not None]
        if len(given) > 1:
            faults.append(f"{' and '.join(given)} all size the KV pool: give one of them")
        if self.preemption_mode == "swap" and self.swap_space == 0:
            faults.append(
                'preemption_mode="swap" needs host memory, but swap_space is 0: give swap_space '
                'some GiB, or choose preemption_mode="recompute"'
            )
        if (
            wrong.isdisjoint(("max_num_batched_tokens", "max_num_seqs"))
            and self.max_num_batched_tokens < self.max_num_seqs
        ):
            faults.append(
                f"max_num_batched_tokens ({self.max_num_batched_tokens}) is below max_num_seqs "
                f"({self.max_num_seqs}): a step must have one token for each running sequence"
            )
        if (
            wrong.isdisjoint(("kv_tokens", "block_size"))
            and self.kv_tokens is not None
            and self.kv_tokens < self.block_size
        ):
            faults.append(
                f"kv_tokens ({self.kv_tokens}) is less than one block of {self.block_size} tokens"
            )
        whole = ("enable_chunked_prefill", "long_prefill_token_threshold")
        lengths = ("max_model_len", "max_num_batched_tokens")
        if wrong.isdisjoint((*whole, *lengths)) and not self.enable_chunked_prefill:
            faults += self._faults_of_whole_prompts()
        if self.device == "cpu" and self.dtype == "float16":
            faults.append('dtype="float16" is for cuda; on the cpu use "float32" or "bfloat16"')
        return faults

    def _faults_of_whole_prompts(self) -> list[str]:
        faults = []
        if self.long_prefill_token_threshold:
            faults.append(
                "long_prefill_token_threshold cuts prompts into chunks, but "
                "enable_chunked_prefill is False: leave one of them at its default"
            )
        if self.max_model_len is not None and self.max_model_len > self.max_num_batched_tokens:
            faults.append(whole_prompt_fault(self.max_model_len, self.max_num_batched_tokens))
        return faults


def whole_prompt_fault(max_model_len: int, max_num_batched_tokens: int) -> str:
    """Why prompts of `max_model_len` cannot run whole, and what to change."""
    return (
        f"enable_chunked_prefill is False, so the longest prompt must fit one step, but "
        f"max_model_len is {max_model_len} and max_num_batched_tokens {max_num_batched_tokens}: "
        f"raise max_num_batched_tokens to {max_model_len}, lower max_model_len, or allow chunks"
    )


def _unknown_setting(name: str, known: list[str]) -> str:
    close = get_close_matches(name, known, n=1)
    hint = f"; did you mean {close[0]}?" if close else ""
    return f"unknown setting {name!r}{hint}"


def _range_fault(
    name: str, value: object, is_right: Callable[[Any], bool], wanted: str, may_be_none: bool
) -> str | None:
    if value is None and may_be_none:
        return None
    if isinstance(value, bool) or not is_right(value):
        return f"{name} must be {wanted}{' or None' * may_be_none}; got {value!r}"
    return None


def _whole(lowest: int, highest: int | None = None) -> tuple[Callable[[Any], bool], str]:
    def is_right(value: Any) -> bool:  # Any: whatever a caller has passed
        return isinstance(value, int) and lowest <= value and (highest is None or value <= highest)

    above = f"of at least {lowest}" if highest is None else f"from {lowest} to {highest}"
    return is_right, f"a whole number {above}"


def _share(wanted: str, is_inside: Callable[[float], bool]) -> tuple[Callable[[Any], bool], str]:
    def is_right(value: Any) -> bool:  # Any: whatever a caller has passed
        return isinstance(value, int | float) and is_inside(value)

    return is_right, wanted


_RANGES: dict[str, tuple[Callable[[Any], bool], str, bool]] = {
    "max_model_len": (
        lambda length: isinstance(length, int) and (length == -1 or length >= 2),
        "a whole number of at least 2, -1 for what fits,",
        True,
    ),
    "max_num_seqs": (*_whole(1), False),
    "max_num_batched_tokens": (*_whole(1), False),
    "block_size": (*_whole(1, 1024), False),
    "num_gpu_blocks_override": (*_whole(1), True),
    "kv_tokens": (*_whole(1), True),
    "kv_cache_memory_bytes": (*_whole(1), True),
    "long_prefill_token_threshold": (*_whole(0), False),
    "max_preemption_lead": (*_whole(1), False),
    "steps_in_flight": (*_whole(1, MAX_STEPS_IN_FLIGHT), False),
    "seed": (*_whole(0, 2**63 - 1), False),
    "num_threads": (*_whole(1), True),
    "artificial_preemption_max": (*_whole(0), False),
    "artificial_preemption_seed": (*_whole(0), False),
    "gpu_memory_utilization": (
        *_share("a number above 0 and at most 1", lambda share: 0 < share <= 1),
        False,
    ),
    "watermark": (*_share("a number from 0 to below 1", lambda share: 0 <= share < 1), False),
    "expected_output_share": (
        *_share("a number from 0 to 1", lambda share: 0 <= share <= 1),
        False,
    ),
    "swap_space": (*_share("a number of GiB, 0 or more", lambda gib: 0 <= gib < 2**20), True),
    "artificial_preemption_probability": (
        *_share("a number from 0 to 1", lambda share: 0 <= share <= 1),
        False,
    ),
}
