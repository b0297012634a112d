import pytest

from tests.support.doors import byte_tokenizer, start_null


@pytest.fixture
def no_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever opens an engine gets one without a model."""
    monkeypatch.setattr("forebay.startup.start", start_null)
    monkeypatch.setattr("forebay.startup.find_tokenizer", lambda config: byte_tokenizer())
