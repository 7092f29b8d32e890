"""Time of the layers, stated as ratios to one `torch.linalg.eigvalsh` of the same batch in the same run.

    python benchmarks/layers.py --out bench-layers.json

One core, one thread, float64, forward and backward, process time: of each case the median of five rounds, each a median
itself, since a shared machine is slow for seconds at a time. The bars are those the project set itself.

A fresh process hands every large block back to the system and pays page faults to get it again; once a larger block
has been freed, as in any training, the C library keeps them. Both are shown for the case with the most memory.
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
from trpl import DiagGaussian, FullGaussian

LARGE, SMALL = (512, 17), (32, 3)
FLOOR = "PyTorch, two products compiled"
ROUNDS = 5
LAYERS = {"Wasserstein": "WassersteinProjection", "Frobenius": "FrobeniusProjection"}
"""By the first words of a case; the others are of the KL layer."""
LARGE_BLOCK = 31 << 20  # bytes; the largest for which glibc learns to keep memory
OUTSIDE, INSIDE = 1e-3, 1e6  # bounds with every sample outside, with none


def gaussian(rng: np.random.Generator, shape: tuple[int, int], *, full: bool) -> DiagGaussian | FullGaussian:
    """A random batch with condition numbers of about ten."""
    size, dim = shape
    mean = rng.normal(size=shape)
    if not full:
        return DiagGaussian(mean, rng.uniform(0.3, 1.3, size=shape))
    rotation = np.linalg.qr(rng.normal(size=(size, dim, dim)))[0]
    cov = (rotation * 10 ** rng.uniform(0, 1, size=(size, 1, dim))) @ rotation.transpose(0, 2, 1)
    return FullGaussian(mean, np.linalg.cholesky(cov))


def median(call: Callable[[], object], *, repeats: int) -> float:
    """Median process time of a call in seconds, after warming up: Python specialises what it has seen often."""
    for _ in range(3 + repeats // 4):
        call()
    times = []
    for _ in range(repeats):
        start = time.process_time()
        call()
        times.append(time.process_time() - start)
    return float(np.median(times))


def torch_call(layer: torch.nn.Module, predicted: tuple, old: tuple, weights: tuple) -> Callable[[], object]:
    """Forward and backward of the layer on leaves, with a dense cotangent."""
    kind = type(predicted)
    leaves = kind(*(torch.from_numpy(x).requires_grad_() for x in predicted))
    fixed = kind(*(torch.from_numpy(x) for x in old))
    cotangents = [torch.from_numpy(x) for x in weights]

    def call() -> object:
        return torch.autograd.grad(tuple(layer(leaves, fixed)), tuple(leaves), cotangents)

    return call


def jax_call(layer: object, predicted: tuple, old: tuple, weights: tuple) -> Callable[[], object]:
    """The same, jitted."""
    kind = type(predicted)
    leaves, fixed = (kind(*(jnp.asarray(x) for x in p)) for p in (predicted, old))
    cotangents = kind(*(jnp.asarray(x) for x in weights))

    @jax.jit
    def gradient(leaves: tuple, fixed: tuple) -> tuple:
        return jax.vjp(lambda p: layer(p, fixed), leaves)[1](cotangents)

    return lambda: jax.block_until_ready(gradient(leaves, fixed))


def main() -> None:
    """Measure, print the table, write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    parser.add_argument("--repeats", type=int, default=31)
    args = parser.parse_args()
    torch.set_num_threads(1)
    jax.config.update("jax_enable_x64", True)
    rng = np.random.default_rng(0)
    factor = torch.from_numpy(gaussian(rng, LARGE, full=True).chol)
    matrices = factor @ factor.mT

    def eigvalsh() -> float:
        return median(lambda: torch.linalg.eigvalsh(matrices), repeats=args.repeats)

    small = trpl.torch.KLProjection(OUTSIDE, OUTSIDE)
    compiled = {
        "PyTorch, in a compiled function": torch.compile(lambda predicted, old: small(predicted, old), fullgraph=True),
        "PyTorch, torch.compile(layer)": torch.compile(small, fullgraph=True),
        FLOOR: torch.compile(lambda predicted, old: (predicted[0] * old[0], predicted[1] * old[1]), fullgraph=True),
    }
    makers = {"PyTorch": (torch_call, trpl.torch), "JAX": (jax_call, trpl.jax)}
    cases = [
        (f"{kind}, {where}", host, LARGE, kind == "full", bound, bar, "ratio")
        for kind, where, bound, bars in (
            ("full", "all outside", OUTSIDE, (3.0, 5.0)),
            ("diagonal", "all outside", OUTSIDE, (0.35, 0.12)),
            ("full", "none outside", INSIDE, (0.4, 0.4)),
            ("diagonal", "none outside", INSIDE, (0.05, 0.05)),
        )
        for host, bar in zip(makers, bars, strict=True)
    ]
    cases.insert(0, ("full, all outside, fresh heap", "PyTorch", LARGE, True, OUTSIDE, 3.0, "ratio"))
    cases += [
        ("32 × 3 diagonal", "PyTorch", SMALL, False, OUTSIDE, 0.4, "ms"),
        ("Wasserstein, diagonal, all outside", "PyTorch", LARGE, False, OUTSIDE, 0.35, "ratio"),
        ("Frobenius, diagonal, all outside", "PyTorch", LARGE, False, OUTSIDE, 0.35, "ratio"),
        ("Wasserstein, 32 × 3 diagonal", "PyTorch", SMALL, False, OUTSIDE, 0.4, "ms"),
        ("Frobenius, 32 × 3 diagonal", "PyTorch", SMALL, False, OUTSIDE, 0.4, "ms"),
        *(("32 × 3 diagonal", name, SMALL, False, OUTSIDE, None if name == FLOOR else 0.15, "ms") for name in compiled),
        ("32 × 3 diagonal", "JAX", SMALL, False, OUTSIDE, 0.1, "ms"),
    ]
    calls = []
    for what, host, shape, full, bound, _, _ in cases:
        predicted, old, weights = (gaussian(rng, shape, full=full) for _ in range(3))
        if host in compiled:
            calls.append(torch_call(compiled[host], predicted, old, weights))
        else:
            maker, layers = makers[host]
            calls.append(
                maker(
                    getattr(layers, LAYERS.get(what.split(",")[0], "KLProjection"))(bound, bound),
                    predicted,
                    old,
                    weights,
                )
            )
    fresh, others = [(0, k) for k in range(ROUNDS)], [(i, k) for k in range(ROUNDS) for i in range(1, len(cases))]
    found: dict[int, list[tuple[float, float]]] = {i: [] for i in range(len(cases))}
    for i, k in track([*fresh, *others], "layers", console=Console(stderr=True)):
        if (i, k) == others[0]:
            torch.empty(LARGE_BLOCK, dtype=torch.uint8)  # freed at once
        before = eigvalsh()
        seconds = median(calls[i], repeats=args.repeats if cases[i][3] else 10 * args.repeats)
        found[i].append((seconds, min(before, eigvalsh())))
    rows = []
    for (what, host, _, _, _, bar, unit), pairs in zip(cases, found.values(), strict=True):
        pairs.sort(key=lambda pair: pair[0] / (pair[1] if unit == "ratio" else 1.0))
        seconds, reference = pairs[ROUNDS // 2]
        value = seconds / reference if unit == "ratio" else seconds * 1e3
        rows.append(
            {
                "case": what, "framework": host, "milliseconds": seconds * 1e3,
                "eigvalsh_milliseconds": reference * 1e3, "value": value, "unit": unit,
                **({} if host == FLOOR else {"bar": bar, "met": value <= bar}),
            }
        )  # fmt: skip
    table = Table(title="Layers (KL where no other is named), forward + backward, float64, one thread")
    for column in ("case", "framework", "ms", "÷ eigvalsh", "bar", ""):
        table.add_column(column, justify="left" if column in ("case", "framework") else "right")
    for row in rows:
        bar = f"≤ {row['bar']:g}{' ms' if row['unit'] == 'ms' else ' ×'}" if "bar" in row else "the floor"
        ratio = f"{row['milliseconds'] / row['eigvalsh_milliseconds']:.3f}"
        mark = {True: "✓", False: "✗"}.get(row.get("met"), "")
        table.add_row(row["case"], row["framework"], f"{row['milliseconds']:.3f}", ratio, bar, mark)
    Console().print(table)
    if args.out:
        args.out.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
