"""The forms of scenario that can be replayed."""

from forebay.parity.replay import Kind
from forebay.parity.vllm_v0 import VLLM_V0
from forebay.parity.vllm_v1 import VllmV1Replay

KINDS = (Kind("vllm-v1", "vllm 0.25.1 v1 Scheduler", VllmV1Replay), VLLM_V0)
