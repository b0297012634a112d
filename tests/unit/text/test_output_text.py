"""Detokenising and stop strings together: stops across tokens, and deltas that add up."""

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forebay.text import OutputText, TextTokenizer

SHARED = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)


def _naive(text: str, stops: list[str]) -> tuple[str, str | None]:
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            stop = max(found, key=len)
            return text[: end - len(stop)], stop
    return text, None


@given(
    text=st.text(alphabet="aé👍. \n", max_size=25),
    stops=st.lists(st.text(alphabet="aé👍. \n\ufffd", min_size=1, max_size=4), max_size=3),
    cut=st.integers(0, 3),
)
@SHARED
def test_stops_are_found_across_tokens_and_bytes(
    bpe: TextTokenizer, spm: TextTokenizer, text: str, stops: list[str], cut: int
) -> None:
    for tokenizer in (bpe, spm):
        ids = tokenizer.encode(text)
        # A character may be left unfinished at the end.
        ids = ids[: max(0, len(ids) - cut)]
        output = OutputText(tokenizer, stops=stops)
        shown = [output.push([index]).text for index in ids]
        shown.append(output.finish().text)
        assert ("".join(shown), output.stop) == _naive(tokenizer.decode(ids), stops)
        assert output.num_chars == len("".join(shown))


def test_the_token_that_completes_a_stop_reports_it(bpe: TextTokenizer) -> None:
    output = OutputText(bpe, stops=["|||"], include_stop=True)
    ids = bpe.encode("ab|||cd")
    stops = [output.push([index]).stop for index in ids]
    first = next(place for place, stop in enumerate(stops) if stop is not None)
    assert "|||" in bpe.decode(ids[: first + 1])
    assert "|||" not in bpe.decode(ids[:first])
    assert output.finish().text == ""
    assert output.num_chars == 5


def test_the_end_may_itself_complete_a_stop(bpe: TextTokenizer) -> None:
    ids = bpe.encode("a👍")[:-1]
    output = OutputText(bpe, stops=["\ufffd"])
    for index in ids:
        assert output.push([index]).stop is None
    last = output.finish()
    assert (last.stop, output.num_chars) == ("\ufffd", 1)


def test_special_tokens_can_be_shown_and_stopped_at(bpe: TextTokenizer) -> None:
    ids = bpe.encode("a<|end|>b")
    hidden = OutputText(bpe, stops=["<|end|>"])
    assert hidden.push(ids).text + hidden.finish().text == "ab"
    shown = OutputText(bpe, stops=["<|end|>"], skip_special_tokens=False)
    delta = shown.push(ids)
    assert (delta.text, delta.stop) == ("a", "<|end|>")


def test_the_prompt_is_context_and_no_part_of_the_text(spm: TextTokenizer) -> None:
    prompt, more = spm.encode("hello"), spm.encode("hello")[1:]
    output = OutputText(spm, stops=["hellohello", "hello hello"], prompt_ids=prompt)
    assert output.push(more).text == " "
    assert output.finish().text == "hello"
