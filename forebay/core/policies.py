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


class QueueRule(Enum):
    """In which order requests wait and run."""

    ONE_ORDER = "one_order"
    """Both by (priority, arrival, id)."""
    BY_ADMISSION = "by_admission"
    """Running in order of admission. Waiting in order of arrival, but victims at the head, the
    latest first; under the priority policy by (priority, arrival, id)."""


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
