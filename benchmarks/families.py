"""Time of the categorical layer, stated as ratios to `log_softmax` of the same logits in the same run.

    python benchmarks/families.py --out bench/families.json

One core, one thread, forward and backward, process time, every state outside of its bound; in JAX both are compiled and
return value and gradient. Of each case the median of five rounds, each a median itself with the reference before and
after it. The bars are those the project set itself, for float64; float32 is shown beside it.
"""
# ruff: noqa: E402 - the number of threads must be set before the frameworks are imported

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from pathlib import Path

for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[name] = "1"
os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_cpu_multi_thread_eigen=false"
if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})

import jax
import jax.numpy as jnp
import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

import trpl.jax
import trpl.torch
from trpl import Categorical

BOUND = 0.05
ROUNDS = 5
LARGE_BLOCK = 31 << 20  # bytes; once such a block was freed, as in any training, the C library keeps memory
CASES = [
    ("PyTorch", (4096, 18), "float64", 12.0),
    ("JAX", (4096, 18), "float64", 5.0),
    ("PyTorch", (256, 50_000), "float64", 8.0),
    ("JAX", (256, 50_000), "float64", 8.0),
    ("PyTorch", (4096, 18), "float32", None),
    ("JAX", (4096, 18), "float32", None),
    ("PyTorch", (256, 50_000), "float32", None),
    ("JAX", (256, 50_000), "float32", None),
]
"""Framework, states × classes, dtype, and the bar."""
Calls = tuple[Callable[[], object], Callable[[], object]]


def median(call: Callable[[], object], *, repeats: int) -> float:
    """Median process time of a call in seconds, after warming up."""
    for _ in range(2 + repeats // 4):
        call()
    times = []
    for _ in range(repeats):
        start = time.process_time()
        call()
        times.append(time.process_time() - start)
    return float(np.median(times))


def torch_calls(predicted: np.ndarray, old: np.ndarray, weights: np.ndarray) -> Calls:
    """`log_softmax` and the layer."""
    leaf, fixed, cotangent = (
        torch.from_numpy(predicted).requires_grad_(),
        torch.from_numpy(old),
        torch.from_numpy(weights),
    )
    layer = trpl.torch.JointKLProjection(BOUND)

    def reference() -> object:
        return torch.autograd.grad(torch.log_softmax(leaf, -1), leaf, cotangent)

    def ours() -> object:
        return torch.autograd.grad(layer(Categorical(leaf), Categorical(fixed)).logits, leaf, cotangent)

    return reference, ours


def jax_calls(predicted: np.ndarray, old: np.ndarray, weights: np.ndarray) -> Calls:
    """The same, jitted."""
    leaf, fixed, cotangent = map(jnp.asarray, (predicted, old, weights))
    layer = trpl.jax.JointKLProjection(BOUND)

    @jax.jit
    def reference(leaf: jax.Array) -> object:
        value, back = jax.vjp(lambda x: jax.nn.log_softmax(x, -1), leaf)
        return value, back(cotangent)

    @jax.jit
    def ours(leaf: jax.Array, fixed: jax.Array) -> object:
        value, back = jax.vjp(lambda x: layer(Categorical(x), Categorical(fixed)).logits, leaf)
        return value, back(cotangent)

    return lambda: jax.block_until_ready(reference(leaf)), lambda: jax.block_until_ready(ours(leaf, fixed))


def measure(framework: str, shape: tuple[int, int], dtype: str) -> dict[str, object]:
    """The figures of one case."""
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=shape).astype(dtype) for _ in range(3)]
    reference, ours = (torch_calls if framework == "PyTorch" else jax_calls)(*arrays)
    repeats = 31 if shape[1] < 1000 else 3
    pairs = []
    for _ in range(ROUNDS):
        before = median(reference, repeats=repeats)
        seconds = median(ours, repeats=repeats)
        pairs.append((seconds, min(before, median(reference, repeats=repeats))))
    seconds, base = sorted(pairs, key=lambda pair: pair[0] / pair[1])[ROUNDS // 2]
    return {
        "framework": framework, "states": shape[0], "classes": shape[1], "dtype": dtype,
        "milliseconds": seconds * 1e3, "log_softmax_milliseconds": base * 1e3, "ratio": seconds / base,
    }  # fmt: skip


def main() -> None:
    """Measure, print the table, write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    parser.add_argument("--dtype", choices=("float64", "float32"), action="append", help="only these")
    args = parser.parse_args()
    torch.set_num_threads(1)
    jax.config.update("jax_enable_x64", True)
    torch.empty(LARGE_BLOCK, dtype=torch.uint8)  # freed at once
    table = Table(title=f"Categorical layer, forward + backward, one thread, all outside (bound {BOUND})")
    for column in ("framework", "states × classes", "dtype", "ms", "÷ log_softmax", "bar", ""):
        table.add_column(column, justify="left" if column in ("framework", "dtype") else "right")
    rows = []
    for framework, shape, dtype, bar in track(CASES, "families", console=Console(stderr=True)):
        if args.dtype and dtype not in args.dtype:
            continue
        row = measure(framework, shape, dtype)
        met = None if bar is None else row["ratio"] <= bar  # pyright: ignore[reportOperatorIssue]
        rows.append({**row, "bar": bar, "met": met})
        size = f"{shape[0]} × {shape[1]:,}"
        cells = (f"{row['milliseconds']:.2f}", f"{row['ratio']:.2f}", "" if bar is None else f"≤ {bar:g} ×")
        table.add_row(framework, size, dtype, *cells, {True: "✓", False: "✗"}.get(met, ""))  # pyright: ignore[reportArgumentType, reportCallIssue]
    Console().print(table)
    if args.out:
        args.out.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
