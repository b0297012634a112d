"""Options that several commands share, and the types of their values."""

import argparse

from forebay.config import DEVICES, DTYPES, PREEMPTION_MODES


def positive(text: str) -> int:
    """A whole number of at least 1."""
    number = _whole(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} should be at least 1")
    return number


def not_negative(text: str) -> int:
    """A whole number of at least 0."""
    number = _whole(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"{text} should be at least 0")
    return number


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    """What to load and where to run it."""
    group = parser.add_argument_group("model")
    group.add_argument(
        "--model",
        metavar="PATH",
        help="a GGUF file or a Hugging Face directory (default: the embedded "
        "SmolLM2-135M-Instruct)",
    )
    group.add_argument("--dtype", choices=DTYPES, default="float32", help="(default: float32)")
    group.add_argument("--device", choices=DEVICES, default="cpu", help="(default: cpu)")
    group.add_argument(
        "--threads", type=positive, metavar="N", help="CPU threads (default: one a core)"
    )


def add_preemption_argument(parser: argparse.ArgumentParser) -> None:
    """How victims yield."""
    parser.add_argument(
        "--preemption",
        choices=PREEMPTION_MODES,
        default="auto",
        help="how a request gives up its blocks when they run out (default: auto)",
    )


def model_settings(arguments: argparse.Namespace) -> dict[str, object]:
    """The settings that `add_model_arguments` asked for."""
    return {
        "model": arguments.model,
        "dtype": arguments.dtype,
        "device": arguments.device,
        "num_threads": arguments.threads,
    }


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number") from None
