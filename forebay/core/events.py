"""What can happen to the machine. An event is a fact; `Scheduler.handle` takes it in."""

from dataclasses import dataclass, field
from enum import Enum

from forebay.units import LoadId, Nanos, RequestId, SeqId, StepSeq


class FinishReason(Enum):
    """Why a sequence ended. Each sequence ends exactly once, with one of these."""

    STOP = "stop"
    """A stop token or stop string."""
    LENGTH = "length"
    """`max_tokens` or `max_model_len` reached."""
    ABORT = "abort"
    """The caller went away."""
    DEADLINE = "deadline"
    """The deadline passed, in the queue or while running."""
    KV_CAPACITY = "kv_capacity"
    """The request filled the whole KV pool by itself; its output so far is whole."""
    IGNORED = "ignored"
    """Given up by a preset: it can never start, or never go on (vLLM V0 calls it so)."""
    ERROR = "error"
    """The executor failed."""


@dataclass(slots=True, frozen=True, kw_only=True)
class Arrive:
    """A request joins. Its token ids go to the executor; the machine sees counts and hashes.

    `block_hashes`: chained hashes of the prompt's full blocks, in order; empty without prefix
    cache. `max_tokens` bounds each of the `num_branches` sequences. Lower `priority` is more
    urgent. `deadline_ns`: an absolute time after which the request is worthless.
    """

    request_id: RequestId
    arrival_ns: Nanos
    num_prompt: int
    max_tokens: int
    num_branches: int = 1
    priority: int = 0
    deadline_ns: Nanos | None = None
    runs_to_limit: bool = False
    """No stop can end it early (`ignore_eos`): its length is known in advance."""
    block_hashes: tuple[bytes, ...] = ()
    external_tokens: int = 0
    """Leading prompt tokens whose KV an external store holds and can load."""


@dataclass(slots=True, frozen=True, kw_only=True)
class Abort:
    """A request ends now, whatever its state. Unknown or ended ids are ignored."""

    request_id: RequestId
    reason: FinishReason = FinishReason.ABORT


@dataclass(slots=True, frozen=True)
class BlockFilled:
    """The token ids of block `index` of a sequence are all known; `hash` is its chained hash."""

    seq_id: SeqId
    index: int
    hash: bytes


@dataclass(slots=True, frozen=True, kw_only=True)
class StepDone:
    """A step was executed. Steps are done in the order in which they were planned.

    Sequences that are not mentioned simply got the token that the plan promised them.
    `stops`: sequences whose newest token of this step ends them (stop token or stop string).
    `filled`: blocks of generated tokens whose last token arrived with this step.
    """

    seq: StepSeq
    stops: tuple[SeqId, ...] = ()
    filled: tuple[BlockFilled, ...] = field(default=())


@dataclass(slots=True, frozen=True)
class LoadDone:
    """A load that a step ordered is complete: its blocks are written."""

    load_id: LoadId


@dataclass(slots=True, frozen=True)
class LoadFailed:
    """A load came to nothing; nothing writes its blocks any more."""

    load_id: LoadId


Event = Arrive | Abort | StepDone | LoadDone | LoadFailed
