import json

import pytest

from forebay.cli import demo
from forebay.cli.main import main
from tests.support.doors import byte_tokenizer

SHORT = [demo.DemoPrompt(f"question {number}", 20 + number % 5) for number in range(12)]


@pytest.fixture
def few_prompts(no_model: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "load_prompts", lambda: SHORT)
    monkeypatch.setattr(demo, "_SHOWN_ANSWERS", (0, 3))


def test_the_prompts_are_48_of_mixed_length() -> None:
    prompts = demo.load_prompts()
    assert len(prompts) == 48
    assert len({one.prompt for one in prompts}) == 48
    lengths = sorted(len(one.prompt) for one in prompts)
    assert lengths[0] < 60
    assert lengths[-5] > 800
    assert all(10 <= one.max_tokens <= 64 for one in prompts)


@pytest.mark.usefixtures("few_prompts")
def test_the_four_runs_are_compared_token_by_token(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--json"]) == 0
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert found["prompts"] == 12
    assert found["outputs_identical"] is True
    runs = {one["name"]: one for one in found["runs"]}
    assert list(runs) == ["no pressure", "recompute", "swap", "auto"]
    need = runs["no pressure"]["kv_tokens_limit"]
    assert need == found["kv_tokens_need"]
    assert runs["no pressure"]["preemptions_recompute"] == 0
    for mode in ("recompute", "swap", "auto"):
        assert runs[mode]["num_identical"] == 12
        assert runs[mode]["kv_tokens_peak"] <= runs[mode]["kv_tokens_limit"] <= need // 3
    assert "recompute: " in err


@pytest.mark.usefixtures("few_prompts")
def test_the_tables_show_answers_and_verdicts(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo"]) == 0
    out = capsys.readouterr().out
    assert "> question 0" in out
    assert out.count("identical") == 3
    assert "reference" in out


@pytest.mark.usefixtures("few_prompts")
def test_an_output_that_differs_is_told_and_fails_the_demo(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run_once = demo.run_once

    def falsified(name, config, job, expected, screen):  # type: ignore[no-untyped-def]
        outcome, outputs = run_once(name, config, job, expected, screen)
        if name == "no pressure":
            outputs[5].outputs[0].token_ids[0] += 1
        return outcome, outputs

    monkeypatch.setattr(demo, "run_once", falsified)
    assert main(["demo"]) == 1
    assert capsys.readouterr().out.count("1 DIFFER") == 3


def test_a_job_knows_what_it_needs(no_model: None) -> None:
    job = demo.load_job(byte_tokenizer())
    each = job.blocks_each(16)
    assert len(each) == 48
    assert job.need_blocks(16) == sum(each)
    assert max(each) * 16 + 1 >= job.longest
