"""Times the CPU kernels at the sizes of SmolLM2-135M and prints markdown tables.

    python bench/kernels.py [--threads N] [--rounds N] [--step]

Times are the best of several rounds; on a busy machine read ratios, not milliseconds. `--step`
prints one line, the time of all products and attention of one decode step: the last table runs it
in processes of their own, because the OpenMP runtime reads its settings when it is loaded.
"""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from forebay.exec.threads import configure_threads

if TYPE_CHECKING:
    from forebay.exec.linear import LinearPlan

NUM_LAYERS = 30
SHAPES = ((576, 960), (576, 576), (576, 3072), (1536, 576))
HEAD = (576, 49152)
ROWS = (1, 8, 16, 24, 32, 64, 256, 1024)
SETTINGS: tuple[dict[str, str], ...] = (
    {"GOMP_SPINCOUNT": "300000"},
    {"GOMP_SPINCOUNT": "10000"},
    {"GOMP_SPINCOUNT": "3000"},
    {"GOMP_SPINCOUNT": "1000"},
    {"OMP_WAIT_POLICY": "passive"},
    {"OMP_WAIT_POLICY": "active"},
)


def best_ms(work: Callable[[], object], rounds: int) -> float:
    work()
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return 1e3 * min(times)


def print_row(cells: Sequence[object]) -> None:
    print("| " + " | ".join(str(cell) for cell in cells) + " |", flush=True)


def print_head(cells: Sequence[object]) -> None:
    print()
    print_row(cells)
    print_row(["---"] * len(cells))


def make_products(plan: "LinearPlan | None") -> Callable[[int], Callable[[], None]]:
    """For a number of rows, all products of one step; the head sees at most 64 rows."""
    import torch
    import torch.nn.functional as F

    from forebay.exec.linear import InvariantLinear

    linear = InvariantLinear(plan) if plan else F.linear
    prepare = linear.prepare if isinstance(linear, InvariantLinear) else torch.Tensor.clone
    layers = [
        [prepare(torch.randn(out, width)) for width, out in SHAPES] for _ in range(NUM_LAYERS)
    ]
    head = prepare(torch.randn(HEAD[1], HEAD[0]))

    def with_rows(rows: int) -> Callable[[], None]:
        inputs = [torch.randn(rows, width) for width, _ in SHAPES]

        def run() -> None:
            for weights in layers:
                for x, weight in zip(inputs, weights, strict=True):
                    linear(x, weight)
            linear(inputs[0][:64], head)

        return run

    return with_rows


def linear_table(rounds: int) -> None:
    from forebay.exec.linear import CANDIDATES

    plans = (None, CANDIDATES[0], CANDIDATES[1], CANDIDATES[-1])
    names = ["torch F.linear (not invariant)", *(plan.scheme.value for plan in plans if plan)]
    schemes = [make_products(plan) for plan in plans]
    print_head(["rows", *(f"{name}, ms" for name in names)])
    for rows in ROWS:
        works = [with_rows(rows) for with_rows in schemes]
        times = [float("inf")] * len(works)
        for _ in range(rounds if rows <= 64 else 2):  # In turns: noise then meets all alike.
            times = [min(t, best_ms(work, 1)) for t, work in zip(times, works, strict=True)]
        print_row([rows, *(f"{t:.1f} ({times[0] / t:.2f}x)" for t in times)])


def make_attention(num_rows: int, context: int, num_layers: int) -> Callable[[int], None]:
    import torch

    from forebay.exec.kv_tensors import KvLayout, KvTensors
    from forebay.exec.paged_attention import paged_attention

    blocks = -(-context // 16)
    layout = KvLayout(num_layers=num_layers, num_kv_heads=3, head_dim=64, block_size=16)
    pools = KvTensors(layout, num_blocks=num_rows * blocks)
    tables = torch.randperm(num_rows * blocks).view(num_rows, blocks).int().contiguous()
    is_prompt = num_rows == 1
    tokens = context if is_prompt else num_rows
    q = torch.randn(tokens, 9, 64)
    rows = torch.zeros(tokens).int() if is_prompt else torch.arange(tokens).int()
    last = torch.full((tokens,), context - 1)
    positions = (torch.arange(tokens) if is_prompt else last).int()

    def attend(layer: int) -> None:
        keys, values = pools.keys(layer), pools.values(layer)
        paged_attention(q, keys, values, tables, rows, positions, 0.125)

    return attend


def attention_table(rounds: int) -> None:
    print_head(["attention, 30 layers", "ms", "GB/s of KV or GFLOP/s"])
    for context in (64, 192, 1024):
        attend = make_attention(32, context, NUM_LAYERS)
        took = best_ms(lambda attend=attend: [attend(i) for i in range(NUM_LAYERS)], rounds)
        gigabytes = 32 * context * NUM_LAYERS * 2 * 3 * 64 * 4 / 1e9
        print_row([f"decode, 32 rows at {context}", f"{took:.1f}", f"{gigabytes / took * 1e3:.1f}"])
    for length in (128, 512, 2048):
        attend = make_attention(1, length, 1)
        took = NUM_LAYERS * best_ms(lambda attend=attend: attend(0), rounds)
        flops = NUM_LAYERS * 4 * 9 * 64 * length * (length + 1) / 2
        print_row([f"prompt of {length}", f"{took:.1f}", f"{flops / took / 1e6:.0f}"])


def element_table(rounds: int) -> None:
    import torch
    import torch.nn.functional as F

    from forebay.exec.kv_tensors import KvLayout, KvTensors
    from forebay.exec.rope import rotate_

    layout = KvLayout(num_layers=1, num_kv_heads=3, head_dim=64, block_size=16)
    pools = KvTensors(layout, num_blocks=64)
    x, gate_up, heads = torch.randn(32, 576), torch.randn(32, 3072), torch.randn(32, 15, 64)
    cos, sin, slots = torch.randn(32, 1, 32), torch.randn(32, 1, 32), torch.arange(32) * 17
    gate, up = gate_up[:, :1536], gate_up[:, 1536:]
    operators: tuple[tuple[str, int, Callable[[], object]], ...] = (
        ("rms_norm", 61, lambda: F.rms_norm(x, (576,), x[0], 1e-5)),
        ("rope", 30, lambda: rotate_(heads[:, :12], cos, sin)),
        ("silu * up", 30, lambda: F.silu(gate).mul_(up)),
        ("write keys and values", 30, lambda: pools.write(0, heads[:, 9:12], heads[:, 12:], slots)),
        ("residual add", 60, lambda: x.add_(1.0)),
    )
    print_head(["torch operator, 32 rows", "us", "times a step", "ms a step"])
    for name, count, work in operators:
        took = best_ms(work, 20 * rounds)
        print_row([name, f"{1e3 * took:.1f}", count, f"{count * took:.2f}"])


def copy_table() -> None:
    from forebay.exec.kv_tensors import KvLayout, KvTensors

    layout = KvLayout(num_layers=30, num_kv_heads=3, head_dim=64, block_size=16)
    start = time.perf_counter()
    pools = KvTensors(layout, num_blocks=256, num_host_blocks=256)
    took = time.perf_counter() - start
    print_head(["blocks of 720 KiB", "GB/s"])
    print_row(["allocate and touch", f"{512 * layout.block_bytes / took / 1e9:.1f}"])
    print_row(["swap", f"{pools.measure_copy_bytes_per_s() / 1e9:.1f}"])


def step_ms(rounds: int) -> float:
    """Products, a torch operator after each, and attention: as a decode step alternates them."""
    import torch
    import torch.nn.functional as F

    from forebay.exec.linear import CANDIDATES, InvariantLinear

    linear = InvariantLinear(CANDIDATES[0])
    layers = [
        [linear.prepare(torch.randn(out, width)) for width, out in SHAPES]
        for _ in range(NUM_LAYERS)
    ]
    inputs = [torch.randn(32, width) for width, _ in SHAPES]
    attend = make_attention(32, 192, NUM_LAYERS)

    def step() -> None:
        for layer, weights in enumerate(layers):
            for x, weight in zip(inputs, weights, strict=True):
                F.silu(linear(x, weight))
            attend(layer)

    return best_ms(step, rounds)


def settings_table(rounds: int, threads: int) -> None:
    print_head(["OpenMP setting", "step without head, ms"])
    command = [sys.executable, __file__, "--step", f"--rounds={rounds}", f"--threads={threads}"]
    times = [float("inf")] * len(SETTINGS)
    for _ in range(3):  # In turns: noise then meets all alike.
        for index, setting in enumerate(SETTINGS):
            environment = {**os.environ, **setting}
            result = subprocess.run(
                command, env=environment, capture_output=True, text=True, check=True
            )
            times[index] = min(times[index], float(result.stdout))
    for setting, took in zip(SETTINGS, times, strict=True):
        print_row([" ".join(f"{k}={v}" for k, v in setting.items()), f"{took:.1f}"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--step", action="store_true", help="print one figure and end")
    options = parser.parse_args()
    threads = configure_threads(options.threads)
    if options.step:
        print(f"{step_ms(options.rounds):.1f}")
        return
    linear_table(options.rounds)
    attention_table(options.rounds)
    element_table(options.rounds)
    copy_table()
    settings_table(options.rounds, threads)


if __name__ == "__main__":
    main()
