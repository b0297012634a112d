import hashlib
import json
from typing import Any

import pytest

from forebay.cli.bench import outputs_digest, random_prompts
from forebay.cli.main import main
from forebay.engine.outputs import CompletionOutput, RequestMetrics, RequestOutput

pytestmark = pytest.mark.usefixtures("no_model")

KEYS = [
    *("seconds", "output_tok_s", "ttft_ms", "tpot_ms", "kv_tokens_limit", "kv_tokens_peak"),
    *("preemptions_recompute", "preemptions_swap", "recomputed_tokens", "swapped_bytes"),
    "outputs_sha256",
]
SMALL = ["bench", "--requests", "8", "--prompt", "40", "--output", "60", "--json"]


def result_of(capsys: pytest.CaptureFixture[str], *extra: str) -> dict[str, Any]:
    assert main([*SMALL, *extra]) == 0
    out, err = capsys.readouterr()
    assert "fits:" in err
    [line] = out.splitlines()
    found: dict[str, Any] = json.loads(line)
    return found


def test_the_result_is_one_json_line_with_these_keys(capsys: pytest.CaptureFixture[str]) -> None:
    found = result_of(capsys)
    assert list(found) == KEYS
    assert found["kv_tokens_limit"] == 8 * 112
    assert found["seconds"] > 0
    assert found["output_tok_s"] == pytest.approx(8 * 60 / found["seconds"], rel=0.01)
    assert 0 < found["ttft_ms"] < 1e3 * found["seconds"]
    assert 0 < found["tpot_ms"] < 1e3 * found["seconds"]
    assert found["preemptions_recompute"] == found["preemptions_swap"] == 0


def test_pressure_shows_in_the_figures_and_not_in_the_digest(
    capsys: pytest.CaptureFixture[str],
) -> None:
    free = result_of(capsys)
    recompute = result_of(capsys, "--kv-tokens", "320", "--preemption", "recompute")
    swap = result_of(capsys, "--kv-tokens", "320", "--preemption", "swap", "--steps-in-flight", "2")
    assert recompute["kv_tokens_limit"] == swap["kv_tokens_limit"] == 320
    assert recompute["kv_tokens_peak"] <= 320
    assert recompute["preemptions_recompute"] > 0 == recompute["preemptions_swap"]
    assert recompute["recomputed_tokens"] > 0 == recompute["swapped_bytes"]
    assert swap["preemptions_swap"] > 0 == swap["preemptions_recompute"]
    assert swap["swapped_bytes"] % (16 * 64) == 0
    assert swap["swapped_bytes"] > 0
    assert free["outputs_sha256"] == recompute["outputs_sha256"] == swap["outputs_sha256"]


def test_the_peak_is_that_of_the_batch_not_of_the_warm_up(
    capsys: pytest.CaptureFixture[str],
) -> None:
    few = ["bench", "--requests", "1", "--prompt", "40", "--output", "8", "--kv-tokens", "512"]
    assert main([*few, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["kv_tokens_peak"] == 48


def test_a_length_beyond_the_pool_is_explained_in_options(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["bench", "--prompt", "100", "--kv-tokens", "64"]) == 2
    assert "max_model_len is --prompt plus --output" in capsys.readouterr().err


def test_another_seed_gives_other_prompts(capsys: pytest.CaptureFixture[str]) -> None:
    assert random_prompts(0, 2, 3, 100) == random_prompts(0, 2, 3, 100)
    assert random_prompts(0, 2, 3, 100) != random_prompts(1, 2, 3, 100)
    assert all(20 <= token < 30 for prompt in random_prompts(5, 20, 5, 30) for token in prompt)


def test_a_pool_smaller_than_one_request_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SMALL, "--kv-tokens", "64"]) == 2
    assert "largest max_model_len that fits is 65" in capsys.readouterr().err


def test_without_json_there_is_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(SMALL[:-1]) == 0
    out = capsys.readouterr().out
    assert "8 x (40 prompt + 60)" in out
    assert "preemptions" in out


def test_the_digest_is_over_all_tokens_in_request_order() -> None:
    def output(*branches: list[int]) -> RequestOutput:
        return RequestOutput(
            request_id="a",
            prompt=None,
            prompt_token_ids=[1],
            outputs=[
                CompletionOutput(index=index, text="", token_ids=ids)
                for index, ids in enumerate(branches)
            ],
            finished=True,
            metrics=RequestMetrics(),
        )

    flat = b"".join(token.to_bytes(4, "little") for token in (1, 2, 70_000, 3))
    assert outputs_digest([output([1, 2], [70_000]), output([3])]) == (
        hashlib.sha256(flat).hexdigest()
    )
    assert outputs_digest([output([3]), output([1, 2])]) != outputs_digest(
        [output([1, 2]), output([3])]
    )
