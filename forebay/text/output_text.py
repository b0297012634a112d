"""The text of one output: detokenised, watched for stop strings, in the right order."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from forebay.text.detokenizer import Detokenizer
from forebay.text.stop_strings import StopDelta, StopMatcher

if TYPE_CHECKING:
    from forebay.text.tokenizer import TextTokenizer


class OutputText:
    """Tokens in, text out; deltas joined are the whole text.

    Push token by token where it matters which one completed a stop: what follows it in the same
    call is dropped with the text after the stop.
    """

    def __init__(
        self,
        tokenizer: "TextTokenizer",
        *,
        stops: Sequence[str] = (),
        include_stop: bool = False,
        skip_special_tokens: bool = True,
        prompt_ids: Sequence[int] = (),
    ) -> None:
        self._detokenizer = Detokenizer(
            tokenizer, skip_special_tokens=skip_special_tokens, prompt_ids=prompt_ids
        )
        self._matcher = StopMatcher(stops, include_stop=include_stop)

    @property
    def stop(self) -> str | None:
        """The stop string that ended the text, once there is one."""
        return self._matcher.stop

    @property
    def num_chars(self) -> int:
        """Characters given out so far."""
        return self._matcher.num_chars

    def push(self, ids: Iterable[int], *, may_stop: bool = True) -> StopDelta:
        """Take the next tokens; `may_stop` is false before `min_tokens` of them came."""
        return self._matcher.push(self._detokenizer.push(ids), may_stop=may_stop)

    def finish(self, *, may_stop: bool = True) -> StopDelta:
        """The end of the text: what was held back, which may itself complete a stop."""
        last = self._matcher.push(self._detokenizer.finish(), may_stop=may_stop)
        return StopDelta(text=last.text + self._matcher.finish(), stop=self._matcher.stop)
