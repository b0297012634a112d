"""The jinja environment in which chat templates run: what they may touch, and how much.

Only `chat_template.py` imports this module, when the first template is compiled: it needs jinja2
at the top, and importing forebay must not.
"""

from typing import Any, NoReturn

from jinja2 import nodes
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.ext import Extension, LoopControlExtension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

_MAX_LENGTH = 1 << 20  # of a sequence made by repetition
_MAX_BITS = 1 << 16  # of a power


class ChatEnvironment(ImmutableSandboxedEnvironment):
    """jinja's immutable sandbox with the names that chat templates expect."""

    intercepted_binops = frozenset({"*", "**"})

    def __init__(self, **options: Any) -> None:
        super().__init__(extensions=[_GenerationTag, LoopControlExtension], **options)
        self.globals["raise_exception"] = _raise_exception
        self.globals["dict"] = _BareDict()
        self.globals["namespace"] = _GuardedNamespace

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Refuse products that would fill the memory; SecurityError, so nothing catches it."""
        if operator == "**":
            _check_power(left, right)
        else:
            _check_repetition(left, right)
            _check_repetition(right, left)
        return super().call_binop(context, operator, left, right)


def _check_repetition(items: Any, count: Any) -> None:
    is_repetition = isinstance(items, str | list | tuple) and isinstance(count, int)
    if is_repetition and len(items) * count > _MAX_LENGTH:
        raise SecurityError(f"a sequence repeated to more than {_MAX_LENGTH} items")


def _check_power(base: Any, exponent: Any) -> None:
    is_power = isinstance(base, int) and isinstance(exponent, int)
    if is_power and base.bit_length() * exponent > _MAX_BITS:
        raise SecurityError(f"a number of more than {_MAX_BITS} bits")


def _raise_exception(message: object) -> NoReturn:
    raise TemplateError(str(message))


class _BareDict:
    """`dict` for templates: callable, and no more; the real type leads to all other types."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args)


class _GuardedNamespace(Namespace):
    """`namespace` for templates, without names that begin with an underscore."""

    def __init__(self, /, *args: Any, **kwargs: Any) -> None:
        attributes = dict(*args, **kwargs)
        for name in attributes:
            _check_attribute(name)
        super().__init__(attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_attribute(name)
        super().__setitem__(name, value)


def _check_attribute(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace attribute begins with an underscore: {name!r}")


class _GenerationTag(Extension):
    """`{% generation %}` marks what an assistant wrote, for training; here its body is printed."""

    tags = {"generation"}  # noqa: RUF012  # the type that jinja declares

    def parse(self, parser: Parser) -> nodes.Node:
        """The body, in a scope of its own as in transformers."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)
