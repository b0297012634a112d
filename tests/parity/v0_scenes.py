"""The V0 recordings, and small scenarios of the same form made on the spot."""

from pathlib import Path
from typing import Any

from forebay.parity.scenario import Fields, read_scenario
from forebay.parity.vllm_v0 import VllmV0Replay

GOLDEN = Path(__file__).parents[1] / "golden" / "vllm-v0"
FILES = sorted(GOLDEN.glob("*.json.gz"))
FAMILIES = sorted({file.name.rpartition("-")[0].removeprefix("v0-") for file in FILES})


def family(name: str) -> list[Path]:
    return [file for file in FILES if file.name.startswith(f"v0-{name}-")]


def read(path: Path) -> dict[str, Any]:
    return dict(read_scenario(path).values)


def scenario(*requests: dict[str, Any], **config: Any) -> Fields:
    """Requests are `{"p": prompt tokens, "m": max_tokens, ...}`; ids are r0, r1, ..."""
    sizes = {"usable_blocks": 8, "host_blocks": 8, "block_size": 4, "max_num_seqs": 8}
    limits = {"max_num_batched_tokens": 64, "max_model_len": 64}
    policies = {"chunked_prefill": False, "delay_factor": 0.0, "preemption_mode": None}
    listed = [
        {
            "id": f"r{at}",
            "prompt": [1] * given["p"],
            "max_tokens": given["m"],
            "n": given.get("n", 1),
            "add_step": given.get("at", 0),
            "abort_step": given.get("abort"),
        }
        for at, given in enumerate(requests)
    ]
    config = {**sizes, **limits, **policies, "watermark": 0.01, **config}
    return Fields("", {"config": config, "requests": listed})


def replay(*requests: dict[str, Any], **config: Any) -> VllmV0Replay:
    return VllmV0Replay(scenario(*requests, **config))
