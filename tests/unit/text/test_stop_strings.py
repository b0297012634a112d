"""Stop strings in a stream: found as in the full text, and never shown too early."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.errors import BadRequest
from forebay.text import StopMatcher

LETTERS = st.text(alphabet="ab", max_size=30)
STOPS = st.lists(st.text(alphabet="ab", min_size=1, max_size=5), max_size=4)
PIECES = st.lists(st.tuples(st.text(alphabet="ab", max_size=6), st.booleans()), max_size=8)


def _first_stop(text: str, stops: list[str], allowed: list[bool]) -> tuple[int, str] | None:
    """By trying every end in turn: the end and the longest stop of the first allowed one."""
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found and allowed[end - 1]:
            return end, max(found, key=len)
    return None


def _longest_beginning(text: str, stops: list[str]) -> int:
    """Length of the longest end of `text` that a stop begins with and goes on from."""
    sizes = (size for stop in stops for size in range(1, len(stop)) if text.endswith(stop[:size]))
    return max(sizes, default=0)


@given(pieces=PIECES, stops=STOPS, include=st.booleans())
def test_equal_to_a_search_of_the_full_text(
    pieces: list[tuple[str, bool]], stops: list[str], include: bool
) -> None:
    text = "".join(piece for piece, _ in pieces)
    allowed = [may for piece, may in pieces for _ in piece]
    found = _first_stop(text, stops, allowed)
    expected = text
    if found is not None:
        end, stop = found
        expected = text[: end if include else end - len(stop)]
    matcher = StopMatcher(stops, include_stop=include)
    deltas = [matcher.push(piece, may_stop=may) for piece, may in pieces]
    joined = "".join(delta.text for delta in deltas) + matcher.finish()
    assert joined == expected
    assert matcher.num_chars == len(expected)
    assert matcher.stop == (found[1] if found else None)


@given(text=LETTERS, stops=STOPS)
def test_exactly_what_may_become_a_stop_is_held_back(text: str, stops: list[str]) -> None:
    matcher = StopMatcher(stops)
    shown = ""
    for end, character in enumerate(text, start=1):
        # No stop is allowed yet, so that the text goes on past those it contains.
        shown += matcher.push(character, may_stop=False).text
        assert len(shown) == end - _longest_beginning(text[:end], stops)


@given(text=LETTERS, stop=st.text(alphabet="ab", min_size=1, max_size=4))
def test_a_single_stop_cuts_where_partition_does(text: str, stop: str) -> None:
    matcher = StopMatcher([stop])
    shown = "".join(matcher.push(character).text for character in text) + matcher.finish()
    assert shown == text.partition(stop)[0]


@pytest.mark.parametrize(
    ("stops", "pieces", "include", "expected"),
    [
        (["\n\n"], ["a\n", "\n", "b"], False, ["a", "", ""]),
        (["\n\n"], ["a\n", "\n", "b"], True, ["a", "\n\n", ""]),
        (["</s>"], ["x<", "/", "s", ">y"], False, ["x", "", "", ""]),
        (["</s>"], ["x<", "/", "t>"], False, ["x", "", "</t>"]),
        (["bb", "abc"], ["ab", "bc"], False, ["", "a"]),
        (["b", "ab"], ["xab"], False, ["x"]),
        (["aab"], ["aa", "aab"], False, ["", "aa"]),
        (["終わり"], ["これで終", "わ", "り。"], False, ["これで", "", ""]),
        ([], ["any", "thing"], False, ["any", "thing"]),
    ],
)
def test_by_hand(stops: list[str], pieces: list[str], include: bool, expected: list[str]) -> None:
    matcher = StopMatcher(stops, include_stop=include)
    assert [matcher.push(piece).text for piece in pieces] == expected


def test_the_first_complete_stop_wins_and_the_longest_of_a_tie() -> None:
    matcher = StopMatcher(["cde", "d"])
    assert matcher.push("abcdef").stop == "d"
    assert matcher.num_chars == 3
    tied = StopMatcher(["d", "cd", "bcd"])
    delta = tied.push("abcdef")
    assert (delta.text, delta.stop) == ("a", "bcd")


def test_what_comes_after_a_stop_is_dropped() -> None:
    matcher = StopMatcher(["."])
    assert matcher.push("One. Two").text == "One"
    late = matcher.push(" Three.")
    assert (late.text, late.stop) == ("", ".")
    assert matcher.finish() == ""
    assert matcher.num_chars == 3


def test_before_min_tokens_a_stop_is_text_but_may_begin_one() -> None:
    matcher = StopMatcher(["##"])
    assert matcher.push("a##b#", may_stop=False).text == "a##b"
    delta = matcher.push("#c")
    assert (delta.text, delta.stop) == ("", "##")
    # Two marks were let through; the third makes a new pair with the second.
    again = StopMatcher(["##"])
    assert again.push("##", may_stop=False).text == "#"
    assert again.push("#").stop == "##"
    assert again.num_chars == 1


def test_held_back_text_comes_at_the_end() -> None:
    matcher = StopMatcher(["END"])
    assert matcher.push("THE EN").text == "THE "
    assert matcher.finish() == "EN"
    assert matcher.num_chars == 6


@pytest.mark.parametrize("stops", ["END", [""], ["a", 3], [None]])
def test_what_is_no_list_of_stops_is_refused(stops: list[str]) -> None:
    with pytest.raises(BadRequest, match="stop string"):
        StopMatcher(stops)


def test_the_text_kept_does_not_grow_with_the_output() -> None:
    matcher = StopMatcher(["stop" * 5])
    for _ in range(5000):
        matcher.push("a stop sto")
    assert len(matcher._held) < 20
    assert matcher.num_chars + len(matcher._held) == 50_000
