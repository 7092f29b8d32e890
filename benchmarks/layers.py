"""Time of every layer, as a table: rows × {eager PyTorch, compiled PyTorch, JAX jitted} × {float64, float32}.

    python benchmarks/layers.py [--row joint] [--host eager] [--dtype float64] [--out bench/layers.json]

One core, one thread, forward and backward of the predicted policy, process time: the median of three rounds, each a
median itself, since a shared machine is slow for seconds at a time. Bars are multiples of one `torch.linalg.eigvalsh`
of 512 matrices 17 × 17 in float64, measured around each case in the same run, or milliseconds for the smallest batches;
those of a compiled layer are its eager time and 5 % more, the two measured in turns, and where nothing is outside with
them a compiled operator that only copies (*copying, ms*): a compiled layer does that and the eager layer's work. *bound
held* is the largest relative distance of the result from its bound, measured in float64 by the package's distances;
where nothing is outside, whether nothing moved. *compile, s* is the process time, with children, of the first call,
with an empty cache of PyTorch's compiler.

The last column has constants, not measured here: milliseconds of what the layers replace, the C++ solver behind the
authors' release (KL) or its PyTorch code (the others), forward and backward in float64, which this project measured
once, on one thread of a busy machine whose `eigvalsh` took 4.4–5 ms.
"""
# ruff: noqa: E402 - the number of threads must be set before the frameworks are imported

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

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
from trpl import DiagGaussian, FullGaussian, entropy

HOSTS, DTYPES = ("eager", "compiled", "jax"), ("float64", "float32")
ROUNDS = 3
LARGE_BLOCK = 31 << 20  # bytes; the largest for which glibc learns to keep memory, as in any training
OUTSIDE, INSIDE = 1e-3, 1e6  # bounds with every sample outside, with none
SLOWER = 1.05  # compiled code against eager
COMPILE_BAR = 20.0  # seconds


@dataclass(frozen=True)
class Row:
    """A layer on a batch: which, of what size, how far the prediction is, and its bar."""

    name: str
    layer: str
    shape: tuple[int, int]
    full: bool
    bound: float
    bar: float
    """A multiple of `eigvalsh`, or milliseconds."""
    unit: str = "ratio"
    jax_bar: float | None = None
    peer: str = ""
    near: bool = False
    """Whether the prediction is a small step from the old policy, else unrelated to it."""
    options: dict[str, Any] = field(default_factory=dict)
    entropy: bool = False
    tensor: bool = False
    """Whether the bound is given for each state."""

    @property
    def inside(self) -> bool:
        return self.bound == INSIDE


JOINT, W2, FROBENIUS, PLAIN_KL = "JointKLProjection", "WassersteinProjection", "FrobeniusProjection", "KLProjection"
MIDDLE, WIDE, LONG, SMALL = (512, 17), (64, 42), (64, 63), (32, 3)
ROWS = (
    Row("joint KL, full 512 × 17, outside", JOINT, MIDDLE, True, 0.03, 3.5, peer="40–44"),
    Row("joint KL, full 512 × 17, nothing outside", JOINT, MIDDLE, True, INSIDE, 0.5, peer="3.7"),
    Row("joint KL with entropy, full 512 × 17", JOINT, MIDDLE, True, 0.03, 4.5, peer="60–78", entropy=True),
    Row("joint KL, full 64 × 42", JOINT, WIDE, True, 0.03, 5.8, jax_bar=4.5, peer="33"),
    Row("W2 (commuting), full 512 × 17", W2, MIDDLE, True, OUTSIDE, 3.0, peer="20 (roots given)"),
    Row("W2 (commuting), full 512 × 17, nothing outside", W2, MIDDLE, True, INSIDE, 1.5, peer="10"),
    Row("W2 exact, full 512 × 17", W2, MIDDLE, True, OUTSIDE, 3.0, options={"form": "exact"}),
    Row("Frobenius, full 512 × 17", FROBENIUS, MIDDLE, True, OUTSIDE, 2.0, peer="16"),
    Row("Frobenius, full 512 × 17, nothing outside", FROBENIUS, MIDDLE, True, INSIDE, 0.5, peer="13"),
    Row("KL, full 64 × 63, near", PLAIN_KL, LONG, True, OUTSIDE, 4.0, peer="105", near=True),
    Row("KL, full 64 × 63, far", PLAIN_KL, LONG, True, OUTSIDE, 4.9, jax_bar=5.4, peer="242"),
    Row("KL, full 512 × 17, near", PLAIN_KL, MIDDLE, True, OUTSIDE, 1.6, peer="81", near=True),
    Row("KL, full 512 × 17, near, a bound per state", PLAIN_KL, MIDDLE, True, OUTSIDE, 1.6, near=True, tensor=True),
    Row("KL, diagonal 512 × 17", PLAIN_KL, MIDDLE, False, OUTSIDE, 0.15, jax_bar=0.04, peer="2.5–7"),
    Row("KL, diagonal 32 × 3", PLAIN_KL, SMALL, False, OUTSIDE, 0.25, "ms", peer="0.072"),
    Row("KL, diagonal 32 × 3, nothing outside", PLAIN_KL, SMALL, False, INSIDE, 0.08, "ms", peer="0.006"),
    Row("W2, diagonal 32 × 3", W2, SMALL, False, OUTSIDE, 0.25, "ms", peer="1.4"),
    Row("Frobenius, diagonal 32 × 3", FROBENIUS, SMALL, False, OUTSIDE, 0.25, "ms"),
)


def gaussian(rng: np.random.Generator, shape: tuple[int, int], *, full: bool) -> DiagGaussian | FullGaussian:
    """A random batch with condition numbers of about ten."""
    size, dim = shape
    mean = rng.normal(size=shape)
    if not full:
        return DiagGaussian(mean, rng.uniform(0.3, 1.3, size=shape))
    rotation = np.linalg.qr(rng.normal(size=(size, dim, dim)))[0]
    cov = (rotation * 10 ** rng.uniform(0, 1, size=(size, 1, dim))) @ rotation.transpose(0, 2, 1)
    return FullGaussian(mean, np.linalg.cholesky(cov))


def moved(rng: np.random.Generator, q: DiagGaussian | FullGaussian, step: float = 0.1) -> DiagGaussian | FullGaussian:
    """A prediction a small step from the old policy, as it sees it."""
    shift = step * rng.normal(size=q.mean.shape)
    if isinstance(q, DiagGaussian):
        return DiagGaussian(q.mean + q.std * shift, q.std * np.exp(step * rng.normal(size=q.std.shape)))
    stretch = np.eye(q.dim) + np.tril(step / np.sqrt(q.dim) * rng.normal(size=q.chol.shape))
    return FullGaussian(q.mean + (q.chol @ shift[..., None])[..., 0], q.chol @ stretch)


def medians(*calls: Callable[[], object], repeats: int) -> list[float]:
    """Median process time of calls in turns, in seconds; after warming up, as Python specialises what runs often."""
    for _ in range(3 + repeats // 4):
        for call in calls:
            call()
    times = []
    for _ in range(repeats):
        times.append([])
        for call in calls:
            start = time.process_time()
            call()
            times[-1].append(time.process_time() - start)
    return np.median(times, axis=0).tolist()


@dataclass(frozen=True)
class Inputs:
    """The arrays of a row, in its dtype."""

    predicted: Any
    old: Any
    weights: Any
    options: dict[str, np.ndarray]


def inputs(row: Row, dtype: str) -> Inputs:
    rng = np.random.default_rng(0)
    old = gaussian(rng, row.shape, full=row.full)
    predicted = moved(rng, old) if row.near else gaussian(rng, row.shape, full=row.full)
    weights = gaussian(rng, row.shape, full=row.full)
    made = [type(p)(*(np.asarray(x, dtype) for x in p)) for p in (predicted, old, weights)]
    options: dict[str, np.ndarray] = {}
    if row.tensor:
        options = {name: np.full(row.shape[0], value, dtype) for name, value in bounds(row).items()}
    if row.entropy:
        options["min_entropy"] = np.asarray(entropy(made[1]) + 0.05, dtype)
    return Inputs(*made, options)


def bounds(row: Row) -> dict[str, float]:
    names = ("bound",) if row.layer == JOINT else ("mean_bound", "cov_bound")
    return dict.fromkeys(names, row.bound)


def torch_call(row: Row, given: Inputs, *, compiled: bool) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """Forward, and forward and backward on leaves with a dense cotangent."""
    layer, kind = getattr(trpl.torch, row.layer)(**bounds(row), **row.options), type(given.predicted)
    leaves = kind(*(torch.from_numpy(x).requires_grad_() for x in given.predicted))
    fixed = kind(*map(torch.from_numpy, given.old))
    cotangents = [torch.from_numpy(x) for x in given.weights]
    options = {name: torch.from_numpy(x) for name, x in given.options.items()}

    def project(leaves: Any, fixed: Any) -> Any:
        return layer(leaves, fixed, **options)

    function = torch.compile(project, fullgraph=True) if compiled else project
    return (
        lambda: kind(*(x.detach().numpy() for x in function(leaves, fixed))),
        lambda: torch.autograd.grad(tuple(function(leaves, fixed)), tuple(leaves), cotangents),
    )


def copy_all(arrays: list[torch.Tensor]) -> list[torch.Tensor]:
    return [x.clone() for x in arrays]


torch.library.define("benchmarks::copy", "(Tensor[] arrays) -> Tensor[]", tags=torch.Tag.pt2_compliant_tag)
torch.library.impl("benchmarks::copy", "CompositeExplicitAutograd", copy_all)
torch.library.register_fake("benchmarks::copy", copy_all)


class Copy(torch.autograd.Function):
    """An operator that a compiler cannot look into and that only copies, forward and backward."""

    @staticmethod
    def forward(*arrays: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(torch.ops.benchmarks.copy(list(arrays)))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: tuple) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *cotangents: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(torch.ops.benchmarks.copy(list(cotangents)))


def copying_call(given: Inputs) -> Callable[[], Any]:
    """The least that a compiled layer with nothing outside has to do: an operator may not return what it was given."""
    leaves = [torch.from_numpy(x).requires_grad_() for x in given.predicted]
    cotangents = [torch.from_numpy(x) for x in given.weights]
    function = torch.compile(lambda *arrays: Copy.apply(*arrays), fullgraph=True)
    return lambda: torch.autograd.grad(function(*leaves), leaves, cotangents)


def jax_call(row: Row, given: Inputs) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """The same, jitted."""
    layer, kind = getattr(trpl.jax, row.layer)(**bounds(row), **row.options), type(given.predicted)
    leaves, fixed, cotangents = (
        kind(*(jnp.asarray(x) for x in p)) for p in (given.predicted, given.old, given.weights)
    )
    options = {name: jnp.asarray(x) for name, x in given.options.items()}

    @jax.jit
    def gradient(leaves: Any, fixed: Any, options: Any) -> Any:
        projected, pullback = jax.vjp(lambda p: layer(p, fixed, **options), leaves)
        return projected, pullback(cotangents)

    return (
        lambda: kind(*(np.asarray(x) for x in gradient(leaves, fixed, options)[0])),
        lambda: jax.block_until_ready(gradient(leaves, fixed, options)[1]),
    )


def bound_held(row: Row, given: Inputs, projected: Any) -> str:
    """How far the result is from its bound, relative to that."""
    # imported here, so that `before.py` can time releases in which these are elsewhere
    from trpl.engines import NUMPY
    from trpl.projections.frobenius import Frobenius
    from trpl.projections.kl.region import KL
    from trpl.projections.regions import parts
    from trpl.projections.wasserstein import Wasserstein

    if row.inside:
        same = all(np.array_equal(x, y) for x, y in zip(projected, given.predicted, strict=True))
        return "unmoved" if same else "MOVED"
    region = {JOINT: KL(), PLAIN_KL: KL(), FROBENIUS: Frobenius(), W2: Wasserstein(**row.options)}[row.layer]
    p, q = (type(x)(*(a.astype(np.float64) for a in x)) for x in (projected, given.old))
    found = parts(NUMPY, region, p, q)
    distances = (found.mean + found.cov,) if row.layer == JOINT else found
    return f"{max(float(np.abs(x / row.bound - 1.0).max()) for x in distances):.0e}"


def measure(row: Row, host: str, dtype: str, eigvalsh: Callable[[], float], repeats: int) -> dict[str, Any]:
    given = inputs(row, dtype)
    torch.compiler.reset()  # every row compiles the same lines again, and PyTorch has a limit for that
    start = sum(os.times()[:4])
    forward, both = jax_call(row, given) if host == "jax" else torch_call(row, given, compiled=host == "compiled")
    both()
    compiling = sum(os.times()[:4]) - start
    held, before = bound_held(row, given, forward()), eigvalsh()
    calls = [both] if host != "compiled" else [both, torch_call(row, given, compiled=False)[1]]
    if host == "compiled" and row.inside:
        calls.append(copying_call(given))
    repeats = repeats if row.full else 10 * repeats
    rounds = [medians(*calls, repeats=repeats) for _ in range(ROUNDS)]
    (seconds, *others), reference = np.median(rounds, axis=0).tolist(), min(before, eigvalsh())
    value = seconds / reference if row.unit == "ratio" else seconds * 1e3
    return {
        "case": row.name, "host": host, "dtype": dtype, "milliseconds": seconds * 1e3,
        "eigvalsh_milliseconds": reference * 1e3, "value": value, "unit": row.unit, "bound_held": held,
        "compile_seconds": None if host == "eager" else compiling, "peer_milliseconds": row.peer,
        **({"bar": SLOWER * others[0] * value / seconds} if others else {}),
        **({"copying_milliseconds": others[1] * 1e3} if len(others) > 1 else {}),
    }  # fmt: skip


def judge(rows: list[dict[str, Any]]) -> None:
    """Bars: the row's for eager PyTorch and JAX in float64; compiled PyTorch has its own, from the eager time."""
    by_name = {row.name: row for row in ROWS}
    for row in rows:
        made = by_name[row["case"]]
        if row["host"] != "compiled" and row["dtype"] == "float64":
            row["bar"] = made.jax_bar if row["host"] == "jax" and made.jax_bar is not None else made.bar
        if "bar" in row:
            row["met"] = row["value"] <= row["bar"] and (row["compile_seconds"] or 0.0) <= COMPILE_BAR


def show(rows: list[dict[str, Any]]) -> Table:
    table = Table(title="Layers, forward + backward, one thread")
    words = ("case", "host", "dtype")
    numbers = ("ms", "÷ eigvalsh", "bar", "", "bound held", "compile, s", "copying, ms", "peer, ms")
    for column in words + numbers:
        table.add_column(column, justify="left" if column in words else "right")
    for row in rows:
        bar = f"≤ {row['bar']:.3g}{' ms' if row['unit'] == 'ms' else ' ×'}" if "bar" in row else ""
        seconds = row["compile_seconds"]
        table.add_row(
            row["case"], row["host"], row["dtype"], f"{row['milliseconds']:.3f}",
            f"{row['milliseconds'] / row['eigvalsh_milliseconds']:.3f}", bar,
            {True: "✓", False: "✗"}.get(row.get("met"), ""), row["bound_held"],
            "" if seconds is None else f"{seconds:.1f}",
            f"{row['copying_milliseconds']:.3f}" if "copying_milliseconds" in row else "", row["peer_milliseconds"],
        )  # fmt: skip
    return table


def main() -> None:
    """Measure, print the table, write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--row", help="only rows whose name contains this")
    parser.add_argument("--host", choices=HOSTS, action="append")
    parser.add_argument("--dtype", choices=DTYPES, action="append")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    args = parser.parse_args()
    torch.set_num_threads(1)
    jax.config.update("jax_enable_x64", True)
    factor = torch.from_numpy(gaussian(np.random.default_rng(0), MIDDLE, full=True).chol)
    matrices = factor @ factor.mT
    torch.empty(LARGE_BLOCK, dtype=torch.uint8)  # freed at once

    def eigvalsh() -> float:
        return medians(lambda: torch.linalg.eigvalsh(matrices), repeats=args.repeats)[0]

    wanted = [row for row in ROWS if not args.row or args.row in row.name]
    cases = [(r, h, d) for d in args.dtype or DTYPES for r in wanted for h in args.host or HOSTS]
    rows = []
    with tempfile.TemporaryDirectory() as empty:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = empty
        for row, host, dtype in track(cases, "layers", console=Console(stderr=True)):
            rows.append(measure(row, host, dtype, eigvalsh, args.repeats))
            judge(rows)
            if args.out:
                args.out.write_text(json.dumps(rows, indent=2) + "\n")
    console = Console()
    (console if console.is_terminal else Console(width=150)).print(show(rows))


if __name__ == "__main__":
    main()
