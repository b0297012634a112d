from collections.abc import Sequence
from typing import Any

import pytest

from forebay.core.effects import RequestReport
from forebay.core.events import FinishReason
from forebay.engine.ports import TokenLogprobs
from forebay.engine.record import NewRequest, RequestRecord
from forebay.errors import DeviceFault
from forebay.sampling_params import SamplingParams
from forebay.units import NANOS_PER_S, Nanos
from tests.support.engines import LetterText, letters

START = Nanos(5 * NANOS_PER_S)
REPORT = RequestReport(
    num_preemptions=2,
    num_swaps=1,
    recomputed_tokens=7,
    cached_tokens=4,
    swapped_blocks=3,
    queue_ns=Nanos(NANOS_PER_S // 4),
    total_ns=Nanos(3 * NANOS_PER_S),
)


def record_of(**params: Any) -> RequestRecord:
    request = NewRequest(
        external_id="a",
        prompt="hi",
        prompt_token_ids=[1, 2],
        sampling=SamplingParams(**params),
        arrival_ns=START,
    )
    return RequestRecord(request, new_text=LetterText, token_text=lambda token: letters([token]))


def at(seconds: float) -> Nanos:
    return Nanos(START + round(seconds * NANOS_PER_S))


def feed(record: RequestRecord, text: str, branch: int = 0) -> list[bool]:
    return [record.take(branch, ord(letter) - 97, None, at(1)) for letter in text]


def test_tokens_become_text_and_a_report() -> None:
    record = record_of()
    record.take(0, 7, None, at(1))
    record.take(0, 8, None, at(2))
    assert not record.finished
    record.end(0, FinishReason.LENGTH, 2, REPORT, at(2.5))
    output = record.read()
    [one] = output.outputs
    assert (one.text, one.token_ids, one.finish_reason) == ("hi", [7, 8], "length")
    assert one.logprobs is None
    assert one.cumulative_logprob is None
    assert output.finished
    metrics = output.metrics
    assert (metrics.first_token_s, metrics.last_token_s, metrics.finished_s) == (1, 2, 2.5)
    assert (metrics.num_preemptions, metrics.recomputed_tokens) == (2, 7)
    assert metrics.queue_s == 0.25
    assert (output.num_cached_tokens, metrics.swapped_blocks) == (4, 3)


def test_a_position_is_spelt_once_however_often_it_is_read() -> None:
    spelt: list[int] = []

    def spell(token: int) -> str:
        spelt.append(token)
        return letters([token])

    request = record_of(logprobs=1, max_tokens=50).request
    record = RequestRecord(request, new_text=LetterText, token_text=spell)
    cursor = record.start_cursor()
    for token in range(30):
        record.take(0, token, TokenLogprobs(-1.0, 2, {99: -0.5}), at(1))
        [whole] = record.read().outputs
        [news] = record.read_since(cursor).outputs
        assert whole.logprobs is not None
        assert [next(iter(one)) for one in whole.logprobs] == list(range(token + 1))
        assert news.logprobs == whole.logprobs[-1:]
    assert len(spelt) == 60
    record.end(0, FinishReason.LENGTH, 20, REPORT, at(2))
    [one] = record.read().outputs
    assert one.logprobs is not None
    assert len(one.logprobs) == len(one.token_ids) == 20


def test_a_stop_string_ends_the_text_and_later_tokens_are_dropped() -> None:
    record = record_of(stop=["cd", "zz"])
    assert feed(record, "abcd") == [False, False, False, True]
    assert feed(record, "xy") == [False, False]
    record.end(0, FinishReason.STOP, 4, REPORT, at(2))
    assert feed(record, "xy") == [False, False]
    [one] = record.read().outputs
    assert (one.text, one.token_ids) == ("ab", [0, 1, 2, 3])
    assert (one.finish_reason, one.stop_reason) == ("stop", "cd")


def test_text_that_may_begin_a_stop_string_is_held_back_until_it_is_certain() -> None:
    record = record_of(stop="cd")
    feed(record, "abc")
    assert record.read().outputs[0].text == "ab"
    record.end(0, FinishReason.ABORT, 3, REPORT, at(2))
    assert record.read().outputs[0].text == "abc"


def test_a_stop_string_counts_only_after_min_tokens() -> None:
    record = record_of(stop="b", min_tokens=2)
    assert feed(record, "abb") == [False, False, True]


def test_a_stop_token_is_a_token_but_no_text() -> None:
    record = record_of(stop_token_ids=[25])
    feed(record, "ab")
    record.take_stop_token(0, 25, None, at(2))
    record.end(0, FinishReason.STOP, 3, REPORT, at(2))
    [one] = record.read().outputs
    assert (one.text, one.token_ids, one.stop_reason) == ("ab", [0, 1, 25], 25)


def test_the_models_own_end_token_has_no_stop_reason() -> None:
    record = record_of()
    record.take_stop_token(0, 25, None, at(2))
    record.end(0, FinishReason.STOP, 1, REPORT, at(2))
    [one] = record.read().outputs
    assert (one.finish_reason, one.stop_reason) == ("stop", None)


def test_a_stop_token_is_kept_in_the_text_on_demand() -> None:
    record = record_of(stop_token_ids=[25], include_stop_str_in_output=True)
    record.take_stop_token(0, 25, None, at(2))
    assert record.read().outputs[0].text == "z"


def test_tokens_beyond_the_end_are_trimmed_with_their_text_and_logprobs() -> None:
    record = record_of(logprobs=1)
    for token in (0, 1, 2):
        record.take(0, token, TokenLogprobs(-0.5, 1, {token: -0.5}), at(1))
    record.end(0, FinishReason.DEADLINE, 2, REPORT, at(2))
    [one] = record.read().outputs
    assert (one.text, one.token_ids, one.cumulative_logprob) == ("ab", [0, 1], -1.0)
    assert one.logprobs is not None
    assert len(one.logprobs) == 2


def test_logprobs_hold_the_sampled_token_first_and_then_the_likeliest() -> None:
    record = record_of(logprobs=2)
    record.take(0, 3, TokenLogprobs(-2.0, 5, {0: -0.1, 1: -1.0}), at(1))
    [one] = record.read().outputs
    assert one.logprobs is not None
    [position] = one.logprobs
    assert list(position) == [3, 0, 1]
    assert (position[3].logprob, position[3].rank, position[3].decoded_token) == (-2.0, 5, "d")
    assert (position[1].logprob, position[1].rank) == (-1.0, 2)


@pytest.mark.parametrize("cuts", [[1, 1, 1, 1, 1], [2, 3], [5]])
def test_deltas_joined_are_the_whole(cuts: Sequence[int]) -> None:
    record, cursor = record_of(stop="ex"), None
    cursor = record.start_cursor()
    rest, texts, tokens = "abcde", [], []
    for cut in cuts:
        feed(record, rest[:cut])
        rest = rest[cut:]
        [one] = record.read_since(cursor).outputs
        texts.append(one.text)
        tokens += one.token_ids
    record.end(0, FinishReason.LENGTH, 5, REPORT, at(2))
    texts.append(record.read_since(cursor).outputs[0].text)
    assert "".join(texts) == "abcde"
    assert tokens == [0, 1, 2, 3, 4]


def test_branches_end_by_themselves_and_the_request_with_its_last() -> None:
    record = record_of(n=2)
    feed(record, "ab", branch=0)
    feed(record, "c", branch=1)
    record.end(1, FinishReason.STOP, 1, None, at(2))
    assert not record.finished
    assert [one.finish_reason for one in record.read().outputs] == [None, "stop"]
    record.end(0, FinishReason.LENGTH, 2, REPORT, at(3))
    assert [one.finish_reason for one in record.read().outputs] == ["length", "stop"]
    assert record.finished


def test_a_group_that_ends_before_it_branches_ends_in_all_branches() -> None:
    record = record_of(n=3)
    record.end(0, FinishReason.ABORT, 0, REPORT, at(2))
    assert [one.finish_reason for one in record.read().outputs] == ["abort"] * 3


def test_a_failure_leaves_what_came_before_it() -> None:
    record = record_of(n=2)
    feed(record, "ab", branch=0)
    record.end(0, FinishReason.STOP, 2, None, at(2))
    feed(record, "x", branch=1)
    record.fail(DeviceFault("it burnt"), at(3))
    output = record.read()
    assert [one.finish_reason for one in output.outputs] == ["stop", "error"]
    assert [one.text for one in output.outputs] == ["ab", "x"]
    assert output.error == "it burnt"
