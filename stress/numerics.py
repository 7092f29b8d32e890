"""Hard numbers thrown at every projection, in PyTorch and JAX, with gradients: what held, as a table.

    python stress/numerics.py [--samples 1000000] [--seed 0] [--projection kl] [--out numerics.json]

The pairs are those of `hard_gaussians` (variances 1e-12 to 1e12, condition numbers to 1e12, means 1e8 apart, bounds
1e-12 to 1e6, dimensions 1 to 64), half of them diagonal and half full, in float64 and a tenth more in float32, some
with entropy control before or after, some with one bound for all, given as a number. Distances of the results are
measured in extended precision by `measuring`, without the package.

The program ends with 1 if the bar is missed. In float64: where rounding of the stored result changes its distance by
less than 1e-6 of the bound, no bound missed by more than that and 1e-6 of it, and elsewhere ("unresolvable", counted)
by no more than 64 times what one rounding allows, the length of the longest sum; no value or gradient that is not
finite. In float32: no value that is not finite without a named error; its distances and gradients are shown and have no
bar.

One core and one thread. The same seed gives the same samples.
"""
# ruff: noqa: E402 - the number of threads must be set before the frameworks are imported

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[name] = "1"
if __name__ == "__main__" and hasattr(os, "sched_setaffinity"):
    # Also because batched LAPACK calls of jaxlib wait in the pool they run in: two at once can lock a pool of two.
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent / "tests")]

import jax
import numpy as np
import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from trials import RESOLVED as BAR
from trials import Rows, Setting, draw, run

from cases import CASES, KINDS, Case

LONGEST_SUM = 64.0  # terms; each may bring one more rounding
ENTROPY_BAR = 1e-9  # of max(1, |β|)
DIMENSIONS = {1: 0.2, 2: 0.25, 3: 0.25, 5: 0.15, 8: 0.1, 17: 0.04, 32: 0.008, 64: 0.002}
JAX_DIMENSIONS = {2: 0.6, 8: 0.4}  # each shape is compiled, so there are few
SHARES = {("torch", "float64"): 0.8, ("jax", "float64"): 0.2, ("torch", "float32"): 0.05, ("jax", "float32"): 0.05}
CONTROLS = ("min_entropy", "entropy", "min_entropy first", "entropy first")
CONTROLLED = 0.2  # of the samples of a separate projection


def batch_size(dim: int) -> int:
    return int(np.clip(65536 // dim**2, 64, 4096))


@dataclass
class Tally:
    """What a projection's samples came to, for one structure and one dtype."""

    samples: int = 0
    projected: int = 0
    refused: int = 0
    silent: int = 0  # values that are not finite, with no error
    bad_gradients: int = 0
    violation: float = 0.0  # largest, where the bound can be resolved to 1e-6
    beyond: float = 0.0  # the same, less what rounding of the stored result allows
    shortfall: float = 0.0  # the same
    unresolvable: int = 0  # where rounding of the result alone can change its distance by more than 1e-6 of the bound
    times_limit: float = 0.0  # there, the violation as a multiple of what rounding allows
    entropy_error: float = 0.0
    errors: Counter = field(default_factory=Counter)
    worst: dict[str, tuple[float, str]] = field(default_factory=dict)

    def add(self, rows: Rows, where: str) -> None:
        self.samples += len(rows.refused)
        self.projected += int(rows.moved.sum())
        self.refused += int(rows.refused.sum())
        self.silent += int(rows.silent.sum())
        self.bad_gradients += int(rows.bad_gradient.sum())
        self.errors.update(rows.errors)
        fine = rows.allowed <= BAR
        self.unresolvable += int((~fine).sum())
        self._worst("violation", np.where(fine, rows.violation, 0.0), where)
        self._worst("beyond", np.where(fine, rows.violation - rows.allowed, 0.0), where)
        self._worst("times_limit", np.where(fine, 0.0, rows.violation / np.maximum(rows.allowed, BAR)), where)
        self._worst("shortfall", rows.shortfall, where)
        self._worst("entropy_error", rows.entropy_error, where)
        self._worst("silent row", rows.silent.astype(float), where)
        self._worst("bad gradient row", rows.bad_gradient.astype(float), where)

    def _worst(self, what: str, values: np.ndarray, where: str) -> None:
        if not len(values):
            return
        row = int(np.nanargmax(np.where(np.isfinite(values), values, np.inf)))
        if not values[row] <= self.worst.get(what, (0.0, ""))[0]:
            self.worst[what] = (float(values[row]), f"{where} row {row}")
            if hasattr(self, what):
                setattr(self, what, float(values[row]))

    def misses(self, dtype: str) -> list[str]:
        """What is wrong, by the bar of float64; float32 has values that must not be silently wrong, and no more."""
        found = [f"{self.silent} values not finite and no error"] if self.silent else []
        if dtype == "float32":
            return found
        if self.bad_gradients:
            found.append(f"{self.bad_gradients} gradients not finite")
        if not self.beyond <= BAR:
            found.append(f"bound exceeded by {self.beyond:.1e} of it more than rounding allows")
        if not self.shortfall <= BAR:
            found.append(f"short of the bound by {self.shortfall:.1e} of it")
        if not self.times_limit <= LONGEST_SUM:
            found.append(f"bound exceeded by {self.times_limit:.1f} times what rounding allows")
        if not self.entropy_error <= ENTROPY_BAR:
            found.append(f"entropy missed by {self.entropy_error:.1e}")
        return found


def settings(case: Case, kind: str, *, samples: int) -> Iterator[tuple[Setting, int]]:
    """Batches for one projection and one structure: what, and how many samples; batches of 0 and 1 among them."""
    for (framework, dtype), share in SHARES.items():
        dimensions = DIMENSIONS if framework == "torch" else JAX_DIMENSIONS if dtype == "float64" else {2: 1.0}
        for dim, part in dimensions.items():
            left = round(samples * share * part)
            size = min(batch_size(dim), max(left, 1))
            plain = Setting(case, kind, framework, dtype, dim)
            if dim == 2 and dtype == "float64":
                yield plain, 0
                yield plain, 1
            for index in range(-(-left // size)):
                control = None
                if not case.joint and index % round(1 / CONTROLLED) == 1:
                    # JAX compiles each control: one for each projection is enough
                    which = CASES.index(case) if framework == "jax" else index // round(1 / CONTROLLED)
                    control = (
                        CONTROLS[which % len(CONTROLS)]
                        if framework == "torch" or (dim, dtype) == (2, "float64")
                        else None
                    )
                yield plain._replace(control=control, number=framework == "torch" and index % 3 == 2), size


def stress(case: Case, kind: str, *, samples: int, seed: int, progress: Progress | None = None) -> dict[str, Tally]:
    """All samples of one projection and structure; tallies by dtype."""
    tallies = {"float64": Tally(), "float32": Tally()}
    task = progress.add_task(f"{case.name} {kind}", total=round(samples * sum(SHARES.values()))) if progress else None
    for index, (setting, num) in enumerate(settings(case, kind, samples=samples)):
        where = [seed, CASES.index(case), KINDS.index(kind), index]
        pair, options = draw(setting, num, where)
        tallies[setting.dtype].add(run(setting, pair, options, seed=where), f"{setting} seed {where}")
        if progress and task is not None:
            progress.advance(task, num)
    return tallies


def table(results: dict[str, dict[str, Tally]]) -> Table:
    out = Table(title="Numbers under stress")
    columns = ("projection", "dtype", "samples", "projected", "largest violation", "largest shortfall", "unresolvable",
               "× rounding", "entropy", "silent NaN", "gradient NaN", "refused", "bar")  # fmt: skip
    for column in columns:
        out.add_column(column, justify="left" if column in ("projection", "dtype", "bar") else "right")
    for name, tallies in results.items():
        for dtype, t in tallies.items():
            if not t.samples:
                continue
            verdict = "; ".join(t.misses(dtype)) or "held"
            numbers = (f"{t.samples:,}", f"{t.projected / t.samples:.0%}", f"{t.violation:.1e}", f"{t.shortfall:.1e}",
                       f"{t.unresolvable:,}", f"{t.times_limit:.1f}", f"{t.entropy_error:.0e}", f"{t.silent:,}",
                       f"{t.bad_gradients:,}", f"{t.refused:,}")  # fmt: skip
            out.add_row(name, dtype, *numbers, verdict)
    return out


def as_json(results: dict[str, dict[str, Tally]], *, samples: int, seed: int, seconds: float) -> dict:
    found = {
        name: {dtype: {**vars(t), "errors": dict(t.errors), "misses": t.misses(dtype)} for dtype, t in tallies.items()}
        for name, tallies in results.items()
    }
    versions = {"numpy": np.__version__, "torch": torch.__version__, "jax": jax.__version__}
    return {"samples": samples, "seed": seed, "seconds": seconds, "versions": versions, "results": found}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Hard numbers against every projection; 1 if the bar is missed.")
    parser.add_argument(
        "--samples", type=int, default=1_000_000, help="in float64 per projection, half diagonal and half full"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--projection", choices=[c.name for c in CASES], action="append", help="only these")
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    arguments = parser.parse_args(argv)
    if np.finfo(np.longdouble).eps >= np.finfo(np.float64).eps:
        raise SystemExit("numpy.longdouble is no finer than float64 on this machine: results could not be measured")
    torch.set_num_threads(1)
    jax.config.update("jax_enable_x64", True)
    console, started = Console(width=None if sys.stdout.isatty() else 180), time.time()
    results: dict[str, dict[str, Tally]] = {}
    bar = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed:,}"), TimeRemainingColumn())
    with Progress(*bar, console=console) as progress, np.errstate(all="ignore"):
        for case in CASES:
            if arguments.projection and case.name not in arguments.projection:
                continue
            for kind in KINDS:
                options = {"samples": arguments.samples // 2, "seed": arguments.seed}
                results[f"{case.name} {kind}"] = stress(case, kind, **options, progress=progress)
                jax.clear_caches()
                if arguments.out:
                    figures = as_json(results, **options, seconds=time.time() - started)
                    arguments.out.write_text(json.dumps(figures, indent=1))
    console.print(table(results))
    errors = sum((t.errors for tallies in results.values() for t in tallies.values()), Counter())
    for message, batches in errors.items():
        console.print(f"refused in {batches} batches by {message}")
    missed = [f"{n} {d}: {m}" for n, ts in results.items() for d, t in ts.items() for m in t.misses(d)]
    for name, tallies in results.items():
        for dtype, t in tallies.items():
            for what, (value, where) in t.worst.items() if t.misses(dtype) else ():
                console.print(f"{name} {dtype}: {what} {value:.2e} in {where}", highlight=False)
    console.print("The bar was held." if not missed else f"The bar was missed: {'; '.join(missed)}")
    return 1 if missed else 0


if __name__ == "__main__":
    raise SystemExit(main())
