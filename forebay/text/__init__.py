"""Tokens to text and back: tokenizer, chat template, incremental detokenising, stop strings."""

from forebay.text.chat_template import ChatTemplate
from forebay.text.detokenizer import Detokenizer
from forebay.text.output_text import OutputText
from forebay.text.stop_strings import StopDelta, StopMatcher
from forebay.text.tokenizer import TextTokenizer

__all__ = [
    "ChatTemplate",
    "Detokenizer",
    "OutputText",
    "StopDelta",
    "StopMatcher",
    "TextTokenizer",
]
