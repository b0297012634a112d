"""Policy values: named answers to questions on which schedulers differ.

`Rules` is one set of answers; its defaults are ours. A preset (`presets.py`) combines rules with
a loop. What only a reference does is named after it.
"""

from dataclasses import dataclass
from enum import Enum


class Preset(Enum):
    """Which loop plans the steps."""

    FOREBAY = "forebay"
    VLLM_V1 = "vllm-v1"
    VLLM_V0 = "vllm-v0"
    NO_EVICT = "no-evict"
    RATIO = "ratio"


class QueueRule(Enum):
    """In which order requests wait and run."""

    ONE_ORDER = "one_order"
    """Both by (priority, arrival, id)."""
    BY_ADMISSION = "by_admission"
    """Running in order of admission. Waiting in order of arrival, but victims at the head, the
    latest first; under the priority policy by (priority, arrival, id)."""
    THREE_QUEUES = "three_queues"
    """Waiting, running and swapped each in the order of entering; victims that are recomputed go
    to the head of waiting when the step is planned, the latest first (vLLM V0)."""


class Granting(Enum):
    """When a prompt that is computed in chunks gets its blocks."""

    ALL_KNOWN = "all_known"
    """All at admission, so a prefill in progress never lacks one."""
    BY_CHUNK = "by_chunk"
    """Chunk by chunk."""


class Publishing(Enum):
    """When a block that a step fills becomes findable."""

    STEP = "step"
    """When the step is planned to its end, or once a generated token's hash is reported."""
    GRANT = "grant"
    """At once when its tokens are promised, as far as they are known; for those that were still
    in flight then, when they come back."""


class Duplicates(Enum):
    """Which of several blocks with equal content the prefix cache knows."""

    FIRST = "first"
    ALL = "all"
    """All; the first published is found, then the next one."""


class UndoneBlocks(Enum):
    """What becomes of blocks that were findable already when their tokens were taken back."""

    WITHDRAWN = "withdrawn"
    STAY_FINDABLE = "stay_findable"
    """vLLM 0.25.1: a later hit takes them for computed, and reads what nobody wrote."""


class CursorRule(Enum):
    """Where the walk through the running list goes on after a victim left it."""

    EXACT = "exact"
    """With the request after the one that asked."""
    VLLM_0_25 = "vllm_0_25"
    """The cursor steps back only for victims that had tokens in this step: behind any other that
    stood before it, one request is passed over."""


class Intake(Enum):
    """What is refused or shortened before it joins the queue."""

    JUDGE = "judge"
    """What can never start is refused; output is capped by `max_model_len` and the pool."""
    CLAMP = "clamp"
    """Output is capped by `max_model_len`; what can never start is found out at admission."""
    TAKE_ALL = "take_all"
    """Nothing: every sequence runs to its `max_tokens` (how the V0 recordings were driven)."""


class SwapSpan(Enum):
    """Which blocks of a victim are copied to the host."""

    COMPUTED = "computed"
    """Those that hold computed tokens."""
    TABLE = "table"
    """The whole table, also what a half-computed prompt has not reached (vLLM V0)."""


class GrowthCheck(Enum):
    """How many free blocks a running request must find before it gets its tokens."""

    MISSING = "missing"
    """As many as it takes."""
    ONE_EACH = "one_each"
    """One for each of its sequences, even if none will be used (vLLM V0). A chunked prompt that
    fills the pool evicts itself for ever."""


class HostLeak(Enum):
    """What becomes of the host blocks of a swapped request that is given up."""

    NONE = "none"
    WHEN_IGNORED = "when_ignored"
    """They are never given back (vLLM 0.5.5), until no victim finds room any more."""


class SwapInSize(Enum):
    """How much of a half-computed prompt must fit in the step that swaps it in."""

    CHUNK = "chunk"
    """What the budget leaves."""
    WHOLE = "whole"
    """All that is missing; if that exceeds the budget of an empty step it waits for ever
    (vLLM 0.5.5)."""


class StartRule(Enum):
    """What must hold, besides room now, before a request starts beside others."""

    OUTLOOK = "outlook"
    """It is expected to run long enough to pay for being preempted (`outlook.py`)."""
    RESERVE_TO_LIMIT = "reserve_to_limit"
    """The pool holds all that run at their full length (`reserve.py`)."""
    TOKEN_RATIO = "token_ratio"
    """The pool holds a share of what those that run may still generate (`token_ratio.py`)."""


class Urgency(Enum):
    """What a waiting request may do to strictly less urgent ones that run."""

    EVICTS = "evicts"
    WAITS = "waits"


@dataclass(slots=True, frozen=True, kw_only=True)
class PromptDelay:
    """Prompts wait until the oldest has waited `factor` times as long as the last prompt step took.

    Compared in floating-point seconds, as the reference does, so that ties fall the same way.
    Source: vLLM 0.5.5's `scheduler_delay_factor`.
    """

    factor: float
    unit_s: float = 1e-9
    """Seconds in one unit of the machine's time. A replay may count steps instead."""


@dataclass(slots=True, frozen=True, kw_only=True)
class Rules:
    """One answer to each question."""

    queues: QueueRule = QueueRule.ONE_ORDER
    granting: Granting = Granting.ALL_KNOWN
    publishing: Publishing = Publishing.STEP
    duplicates: Duplicates = Duplicates.FIRST
    undone_blocks: UndoneBlocks = UndoneBlocks.WITHDRAWN
    cursor: CursorRule = CursorRule.EXACT
    watermark_spare_blocks: int = 0
    """Blocks that the watermark's share counts beyond the usable ones (vLLM: its null block)."""
    intake: Intake = Intake.JUDGE
    start: StartRule = StartRule.OUTLOOK
    urgency: Urgency = Urgency.EVICTS
    growth: GrowthCheck = GrowthCheck.MISSING
    swap_span: SwapSpan = SwapSpan.COMPUTED
    swap_in_size: SwapInSize = SwapInSize.CHUNK
    host_leak: HostLeak = HostLeak.NONE
    prompt_delay: PromptDelay | None = None
    conservativeness: float = 1.0
    """Scales the share of `StartRule.TOKEN_RATIO`."""
