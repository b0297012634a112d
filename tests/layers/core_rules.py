"""Rules for forebay/core that no linter knows: one writer of state, no order from sets, no I/O."""

import ast
from collections.abc import Iterator

from tests.layers.source import Source

WRITER_OF_STATE = "forebay.core.lifecycle"
# print and open are I/O; hash() and id() differ from one process to the next.
FORBIDDEN_CALLS = {
    *("open", "print", "input", "breakpoint"),
    *("__import__", "eval", "exec"),
    *("hash", "id"),
}
SET_METHODS = {"union", "intersection", "difference", "symmetric_difference"}
SET_TYPES = {"set", "frozenset", "Set", "AbstractSet", "MutableSet"}
ORDERED_CALLS = {"list", "tuple", "iter", "next", "enumerate", "zip", "map", "filter", "deque"}
UNORDERED_CALLS = {"sorted", "any", "all", "sum", "len", "set", "frozenset"}


def state_writes(source: Source) -> list[str]:
    """Assignments to an attribute named `state` anywhere but in the lifecycle."""
    if source.name == WRITER_OF_STATE:
        return []
    return [
        f"{source.path}:{node.lineno}: writes .state; only {WRITER_OF_STATE} may: call advance()"
        for node in ast.walk(source.tree)
        if isinstance(node, ast.expr) and _writes_state(node)
    ]


def _writes_state(node: ast.expr) -> bool:
    if isinstance(node, ast.Attribute):
        return node.attr == "state" and isinstance(node.ctx, ast.Store | ast.Del)
    if isinstance(node, ast.Call) and ast.unparse(node.func).rstrip("_").endswith(
        ("setattr", "delattr")
    ):
        return any(isinstance(arg, ast.Constant) and arg.value == "state" for arg in node.args)
    return False


def forbidden_calls(source: Source) -> list[str]:
    """Calls of builtins that reach outside or differ between runs.

    A file run as a script (`python -m forebay.core.lifecycle`) may print.
    """
    imported = [part for part in source.tree.body if not _is_script_part(part)]
    return [
        f"{source.path}:{node.lineno}: calls {node.func.id}(), which the core may not"
        for part in imported
        for node in ast.walk(part)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in FORBIDDEN_CALLS
    ]


def _is_script_part(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "__name__ == '__main__'"


def set_iterations(source: Source) -> list[str]:
    """Places where the order of a set could decide something.

    A heuristic: it knows set literals, set(...), set operators and methods, and names or
    attributes that this file assigns or annotates as sets. Sorting first is the way out.
    """
    known = {ast.unparse(name) for name in _set_names(source.tree)}
    return [
        f"{source.path}:{node.lineno}: takes an order from the set {ast.unparse(node)}; "
        "use a dict or a list, or sort it"
        for node in _iterated(source.tree)
        if _is_set(node, known)
    ]


def _set_names(tree: ast.AST) -> Iterator[ast.expr | ast.arg]:
    for node in ast.walk(tree):
        match node:
            case ast.Assign(targets=targets, value=value) if _is_set(value, set()):
                yield from targets
            case ast.AnnAssign(target=target, annotation=kind) if _is_set_type(kind):
                yield target
                if isinstance(target, ast.Name):  # a field of a class
                    yield ast.parse(f"self.{target.id}", mode="eval").body
            case ast.arg(arg=name, annotation=kind) if kind is not None and _is_set_type(kind):
                yield ast.Name(id=name)


def _is_set_type(kind: ast.expr) -> bool:
    outer = kind.value if isinstance(kind, ast.Subscript) else kind
    return ast.unparse(outer).rpartition(".")[2] in SET_TYPES


def _iterated(tree: ast.AST) -> Iterator[ast.expr]:
    """Expressions whose elements are taken one after another, where the order could show."""
    harmless = _order_free(tree)
    for node in ast.walk(tree):
        match node:
            case ast.For(iter=taken):
                yield taken
            case ast.ListComp() | ast.GeneratorExp() | ast.DictComp() if node not in harmless:
                yield from (generator.iter for generator in node.generators)
            case ast.Call(func=ast.Name(id=name), args=args) if name in ORDERED_CALLS:
                yield from args
            case ast.Call(func=ast.Attribute(attr="pop", value=taken), args=[]):
                yield taken
            case ast.Starred(value=taken):
                yield taken


def _order_free(tree: ast.AST) -> list[ast.expr]:
    """Comprehensions handed straight to a call whose result knows no order."""
    return [
        node.args[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in UNORDERED_CALLS
        and node.args
    ]


def _is_set(node: ast.expr, known: set[str]) -> bool:
    match node:
        case ast.Set() | ast.SetComp():
            return True
        case ast.Call(func=ast.Name(id="set" | "frozenset")):
            return True
        case ast.Call(func=ast.Attribute(attr=name)) if name in SET_METHODS:
            return True
        case ast.BinOp(op=ast.BitOr() | ast.BitAnd() | ast.BitXor() | ast.Sub()):
            return _is_set(node.left, known) or _is_set(node.right, known)
        case ast.Name() | ast.Attribute():
            return ast.unparse(node) in known
    return False
