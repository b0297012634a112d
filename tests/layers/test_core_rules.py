"""The core has one writer of state, takes no order from sets, and reaches for nothing outside."""

from collections.abc import Callable

import pytest

from tests.layers import core_rules
from tests.layers.source import Source, python_sources, snippet

CORE = python_sources("forebay/core")
Check = Callable[[Source], list[str]]


@pytest.mark.parametrize(
    "check",
    [core_rules.state_writes, core_rules.set_iterations, core_rules.forbidden_calls],
    ids=lambda check: check.__name__,
)
def test_the_core_keeps_its_rules(check: Check) -> None:
    assert CORE, "no sources found below forebay/core"
    faults = [fault for source in CORE for fault in check(source)]
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize(
    "text",
    [
        "request.state = Running()",
        "self.request.state, x = Running(), 1",
        "request.state: State = Running()",
        "request.state |= 1",
        "setattr(request, 'state', Running())",
        "object.__setattr__(request, 'state', Running())",
        "del request.state",
    ],
)
def test_a_second_writer_of_state_is_found(text: str) -> None:
    assert core_rules.state_writes(snippet(text))
    assert core_rules.state_writes(snippet(text, name=core_rules.WRITER_OF_STATE)) == []


def test_reading_state_is_free() -> None:
    assert core_rules.state_writes(snippet("state = request.state\nif request.state == x: y")) == []


@pytest.mark.parametrize(
    "text",
    [
        "for x in {1, 2}: pass",
        "for x in set(ids): pass",
        "for x in held | {3}: pass",
        "for x in a.union(b): pass",
        "y = [x for x in {z for z in ids}]",
        "y = {x: 1 for x in frozenset(ids)}",
        "held = set()\nfor x in held: pass",
        "def f(held: set[int]):\n    return list(held)",
        "class A:\n    held: set[int]\n    def f(self):\n        return next(iter(self.held))",
        "class A:\n    def __init__(self): self.held = set()\n    def f(self): self.held.pop()",
        "y = [*{1, 2}]",
    ],
)
def test_an_order_taken_from_a_set_is_found(text: str) -> None:
    assert core_rules.set_iterations(snippet(text))


@pytest.mark.parametrize(
    "text",
    [
        "for x in sorted({1, 2}): pass",
        "for x in [1, 2]: pass",
        "held = {1: 2}\nfor x in held: pass",
        "y = any(x > 1 for x in {1, 2})",
        "held = set()\nheld.add(1)\ny = 1 in held",
        "stack = [1]\nstack.pop()",
    ],
)
def test_what_needs_no_order_passes(text: str) -> None:
    assert core_rules.set_iterations(snippet(text)) == []


@pytest.mark.parametrize("text", ["print(1)", "open('x')", "key = hash('tail')", "id(request)"])
def test_a_forbidden_call_is_found(text: str) -> None:
    assert core_rules.forbidden_calls(snippet(text))


def test_methods_with_such_names_and_scripts_pass() -> None:
    assert core_rules.forbidden_calls(snippet("if __name__ == '__main__': print(table())")) == []
    assert core_rules.forbidden_calls(snippet("gate.open()\ntable.id(3)")) == []
