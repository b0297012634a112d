import dataclasses
import re
from typing import Any, get_args

import pytest

from forebay import CompletionOutput, RequestMetrics, RequestOutput, errors
from forebay.engine.outputs import FinishName
from tests.layers.source import ROOT

PAGE = (ROOT / "docs" / "guide" / "python-api.md").read_text(encoding="utf-8")
SAMPLES = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


@pytest.mark.usefixtures("no_model")
@pytest.mark.parametrize("sample", SAMPLES)
def test_the_samples_run(sample: str, capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {}
    exec(compile(sample, "python-api.md", "exec"), names)
    assert capsys.readouterr().out


def test_there_are_samples_of_both_doors() -> None:
    assert any("LLM()" in sample for sample in SAMPLES)
    assert any("AsyncLLM()" in sample for sample in SAMPLES)


def test_every_field_of_an_output_is_named() -> None:
    for kind in (RequestOutput, CompletionOutput, RequestMetrics):
        for field in dataclasses.fields(kind):
            assert f"`{field.name}`" in PAGE, f"{kind.__name__}.{field.name}"


def test_every_finish_reason_and_error_is_explained() -> None:
    rows = re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE)
    assert set(get_args(FinishName)) <= set(rows)
    named = {name for name in rows if name[0].isupper()}
    # The base is in the text; a bounded queue belongs to servers.
    known = {name for name in vars(errors) if isinstance(getattr(errors, name), type)}
    assert known - named == {"ForebayError", "RequestRefused", "QueueFull"}
