"""Hard numbers and a general optimiser against the joint layer of every family: what held, as a table.

    python stress/families.py [--samples 100000] [--optimality 500] [--seed 0] [--family beta] [--out families.json]

The pairs are those of `hard_families`, 100,000 in float64 for each family (a tenth of them in JAX) and a tenth more in
float32, with all gradients. KLs of the results are measured in extended precision, those of Betas with 40 digits.

The program ends with 1 if a bar is missed. Float64: the bound missed by no more than 1e-8 of it, or than one rounding
of each stored number allows; no value or gradient that is not finite. Float32, where the bound is at least 1e-4: 1e-3
of it, or rounding. Optimality: nothing that SLSQP finds within the constraints is better by more than 1e-6.
"""
# ruff: noqa: E402 - the number of threads must be set before the frameworks are imported

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[name] = "1"
sys.path[:0] = [str(Path(__file__).parent.parent / "tests"), str(Path(__file__).parent)]  # families is the tests'

import jax
import numpy as np
import torch
from hard_families import DRAW, measured
from rich.console import Console
from rich.progress import track
from rich.table import Table

import trpl.jax
import trpl.torch
from families import oracles
from families.pairs import BY_NAME, Kind, pair
from frameworks import QUICK

BAR, BAR32, LOWEST32, OPTIMAL = 1e-8, 1e-3, 1e-4, 1e-6
LARGEST_BATCH = 1 << 21  # entries
SHAPES: dict[str, dict[tuple[tuple[str, int], ...], float]] = {
    "categorical": {
        (("categorical", 2),): 0.25, (("categorical", 3),): 0.2, (("categorical", 6),): 0.2,
        (("categorical", 18),): 0.2, (("categorical", 100),): 0.1, (("categorical", 1000),): 0.045,
        (("categorical", 10_000),): 0.004, (("categorical", 50_000),): 0.001,
    },
    "bernoulli": {(("bernoulli", 1),): 0.3, (("bernoulli", 3),): 0.4, (("bernoulli", 17),): 0.3},
    "beta": {(("beta", 1),): 0.6, (("beta", 2),): 0.35, (("beta", 6),): 0.05},
    "product": {
        (("categorical", 3), ("categorical", 5), ("categorical", 2)): 0.4,
        (("diag", 2), ("categorical", 4)): 0.4,
        (("diag", 1), ("bernoulli", 2), ("categorical", 3)): 0.18,
        (("beta", 1), ("categorical", 3)): 0.02,
    },
}  # fmt: skip
"""The sizes of each family and their shares of the samples."""
IN_JAX = {"categorical": 3, "bernoulli": 1, "beta": 1, "product": 1}
"""Which shape JAX gets: each is compiled."""


@dataclass
class Tally:
    """What the samples of one family, framework and dtype came to."""

    samples: int = 0
    projected: int = 0
    not_finite: int = 0
    bad_gradients: int = 0
    error: float = 0.0  # largest distance from the bound, relative to it
    beyond: float = 0.0  # the same, less what rounding of the stored numbers allows
    rounded: int = 0  # where rounding alone may be more than the bar
    where: str = ""

    def add(self, error: np.ndarray, allowed: np.ndarray, moved: np.ndarray, bar: float, where: str) -> None:
        self.samples, self.projected = self.samples + len(error), self.projected + int(moved.sum())
        self.rounded += int((allowed > bar).sum())
        self.error = max(self.error, float(np.max(np.where(allowed > bar, 0.0, error), initial=0.0)))
        beyond = np.maximum(error - allowed, 0.0)
        if len(beyond) and beyond.max() > self.beyond:
            self.beyond, self.where = float(beyond.max()), f"{where} row {int(beyond.argmax())}"

    def misses(self, dtype: str) -> list[str]:
        found = [f"{self.not_finite} values not finite"] if self.not_finite else []
        found += [f"{self.bad_gradients} gradients not finite"] if self.bad_gradients else []
        bar = BAR if dtype == "float64" else BAR32
        return found + ([f"bound missed by {self.beyond:.1e} of it ({self.where})"] if not self.beyond <= bar else [])


def draw(kind: Kind, num: int, seed: list[int]) -> tuple[list, list, np.ndarray]:
    """The predicted and the old arrays of each part, and the bounds."""
    rng = np.random.default_rng(seed)
    parts = [DRAW[name](rng, num, size) for name, size in kind.parts]
    return [x.predicted for x in parts], [x.old for x in parts], parts[0].bound


def in_torch(kind: Kind, arrays: list[np.ndarray], weights: list[np.ndarray]) -> list[np.ndarray]:
    """The projected arrays and all gradients of a random linear function of them."""
    leaves = [torch.tensor(x, requires_grad=True) for x in arrays]
    num = len(weights)
    p, q = kind.unflatten(leaves[:num]), kind.unflatten(leaves[num : 2 * num])
    out = kind.arrays(trpl.torch.JointKLProjection(1.0)(p, q, bound=leaves[-1]))
    total = torch.stack(
        [(torch.as_tensor(w) * x.where(x > -torch.inf, 0.0)).sum() for w, x in zip(weights, out, strict=True)]
    )
    grads = torch.autograd.grad(total.sum(), leaves, allow_unused=True)
    return [x.detach().numpy() for x in out] + [np.zeros(1) if g is None else g.numpy() for g in grads]


def jax_function(kind: Kind):
    """The same, compiled."""

    def total(leaves, weights):
        num = len(weights)
        p, q = kind.unflatten(leaves[:num]), kind.unflatten(leaves[num : 2 * num])
        out = kind.arrays(trpl.jax.JointKLProjection(1.0)(p, q, bound=leaves[-1]))
        kept = [jax.numpy.where(x > -jax.numpy.inf, x, 0.0) for x in out]
        return sum((w * x).sum() for w, x in zip(weights, kept, strict=True)), out

    def run(leaves, weights):
        (_, out), grads = jax.value_and_grad(total, has_aux=True)(leaves, weights)
        return [*out, *grads]

    return jax.jit(run, compiler_options=QUICK)


def batches(family: str, samples: int) -> Iterator[tuple[str, str, Kind, int]]:
    """Framework, dtype, shape and number of samples of each batch."""
    for index, (parts, share) in enumerate(SHAPES[family].items()):
        kind = Kind(f"{family}-{index}", parts)
        widest = max(size for _, size in parts)
        for framework, dtype, part in (("torch", "float64", 0.9), ("torch", "float32", 0.1)):
            left = round(samples * share * part)
            while left > 0:
                num = min(left, max(1, LARGEST_BATCH // widest), 10_000)
                yield framework, dtype, kind, num
                left -= num
        if index == IN_JAX[family]:
            for _ in range(10):
                yield "jax", "float64", kind, samples // 100


def numbers(family: str, samples: int, seed: int) -> dict[str, Tally]:
    """All samples of a family; tallies by framework and dtype."""
    tallies: dict[str, Tally] = {}
    functions: dict[str, object] = {}
    for index, (framework, dtype, kind, num) in enumerate(
        track(list(batches(family, samples)), family, console=Console(stderr=True))
    ):
        where = [seed, list(SHAPES).index(family), index]
        predicted, old, bound = draw(kind, num, where)
        arrays = [np.asarray(x, dtype) for part in (*predicted, *old) for x in part] + [bound.astype(dtype)]
        rng = np.random.default_rng(where)
        weights = [rng.normal(size=x.shape).astype(dtype) for x in arrays[: (len(arrays) - 1) // 2]]
        size = len(weights)
        if framework == "jax":
            run = functions.setdefault(kind.name, jax_function(kind))
            found = [np.asarray(x) for x in run([*map(jax.numpy.asarray, arrays)], weights)]  # pyright: ignore[reportCallIssue]
        else:
            found = in_torch(kind, arrays, weights)
        tally = tallies.setdefault(f"{framework} {dtype}", Tally())
        out, gradients = found[:size], found[size:]
        tally.not_finite += sum(
            int((np.isnan(x) | (np.isneginf(x) != np.isneginf(y))).sum()) for x, y in zip(out, arrays, strict=False)
        )
        tally.bad_gradients += sum(int((~np.isfinite(g)).sum()) for g in gradients)
        p, q = (_split(kind, x) for x in (out, arrays[size : 2 * size]))
        kl, slope = measured(kind.kinds, p, q)
        limit = arrays[-1].astype(np.longdouble)
        distance = (kl / limit - 1).astype(np.float64)
        moved = np.zeros(num, dtype=bool)
        for x, y in zip(out, arrays, strict=False):
            moved |= (x != y).reshape(num, -1).any(-1)
        error = np.where(moved, np.abs(distance), np.maximum(distance, 0.0))
        allowed = 4 * np.finfo(dtype).eps / 2 * slope / arrays[-1]
        if dtype == "float32":
            error = np.where(arrays[-1] >= LOWEST32, error, 0.0)
        tally.add(error, allowed, moved, BAR if dtype == "float64" else BAR32, f"{kind.parts} seed {where}")
    return tallies


def _split(kind: Kind, arrays: list[np.ndarray]) -> list[tuple[np.ndarray, ...]]:
    made, rest = [], list(arrays)
    for name in kind.kinds:
        fields = len(oracles.POSITIVE[name])
        made.append(tuple(x.astype(np.float64) for x in rest[:fields]))
        rest = rest[fields:]
    return made


@dataclass
class Optimality:
    """States tried, agreements in value to 1e-6, and states where the optimiser was better by more."""

    states: int = 0
    agree: int = 0
    worse: int = 0
    largest: float = -np.inf  # by how much a sound result of the optimiser was better


def optimality(name: str, states: int, *, controlled: bool) -> Optimality:
    """Random states of a kind against SLSQP, half of them with a least entropy."""
    kind, found = BY_NAME[name], Optimality()
    predicted, old = pair(name, states, seed=5 + controlled)
    rng = np.random.default_rng(3)
    bound = np.exp(rng.uniform(np.log(1e-3), np.log(0.5), size=states))
    p, q = (kind.make(x, torch.as_tensor) for x in (predicted, old))
    options = {}
    if controlled:
        share = torch.as_tensor(rng.uniform(size=states))
        options["min_entropy"] = trpl.entropy(q) - 0.3 * share * trpl.entropy(q).abs()
    projected = trpl.torch.JointKLProjection(torch.as_tensor(bound))(p, q, **options)
    ours = [tuple(x.numpy() for x in part) for part in getattr(projected, "parts", (projected,))]

    def row(parts, i):
        return [tuple(x[i] for x in part) for part in parts]

    def kl(parts, others) -> float:
        return sum(oracles.kl(k, one, two) for k, one, two in zip(kind.kinds, parts, others, strict=True))

    for i in track(range(states), f"optimality {name}", console=Console(stderr=True)):
        least = float(options["min_entropy"][i]) if controlled else None
        theirs = oracles.project(kind.kinds, row(predicted, i), row(old, i), bound[i], least)
        sound = kl(theirs, row(old, i)) <= bound[i] + 1e-9
        if least is not None:
            sound = sound and sum(map(oracles.entropy, kind.kinds, theirs)) >= least - 1e-9
        gap = kl(row(ours, i), row(predicted, i)) - kl(theirs, row(predicted, i))
        found.states += 1
        found.agree += abs(gap) <= OPTIMAL
        if sound:
            found.worse += gap > OPTIMAL
            found.largest = max(found.largest, gap)
    return found


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Hard numbers against every family; 1 if a bar is missed.")
    parser.add_argument("--samples", type=int, default=100_000, help="for each family; 0: optimality alone")
    parser.add_argument("--optimality", type=int, default=500, help="states for each family against SLSQP")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--family", choices=list(SHAPES), action="append", help="only these")
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    arguments = parser.parse_args(argv)
    torch.set_num_threads(1)
    jax.config.update("jax_enable_x64", True)
    started, missed, figures = time.time(), [], {}
    table = Table(title="Families under stress")
    columns = (
        "family",
        "samples",
        "projected",
        "largest error ÷ ε",
        "beyond rounding",
        "rounding > bar",
        "NaN",
        "gradient NaN",
        "bar",
    )
    for column in columns:
        table.add_column(column, justify="left" if column in ("family", "bar") else "right")
    for family in arguments.family or SHAPES:
        found = numbers(family, arguments.samples, arguments.seed) if arguments.samples else {}
        for what, t in found.items():
            misses = t.misses(what.split()[1])
            missed += [f"{family} {what}: {miss}" for miss in misses]
            figures[f"{family} {what}"] = {**asdict(t), "misses": misses}
            cells = (
                f"{t.samples:,}",
                f"{t.projected / t.samples:.0%}",
                f"{t.error:.1e}",
                f"{t.beyond:.1e}",
                f"{t.rounded:,}",
            )
            table.add_row(
                f"{family} {what}", *cells, str(t.not_finite), str(t.bad_gradients), "; ".join(misses) or "held"
            )
        name = "hybrid" if family == "product" else family
        for controlled in (False, True) if arguments.optimality else ():
            o = optimality(name, arguments.optimality // 2, controlled=controlled)
            label = f"{name} optimality{', least entropy' if controlled else ''}"
            missed += [f"{label}: {o.worse} states worse than SLSQP"] if o.worse else []
            figures[label] = asdict(o)
            table.add_row(
                label,
                f"{o.states:,}",
                f"{o.agree} agree",
                f"{o.largest:.1e}",
                "",
                "",
                "",
                "",
                f"{o.worse} worse" if o.worse else "held",
            )
        if arguments.out:
            arguments.out.write_text(json.dumps({"seconds": time.time() - started, "results": figures}, indent=1))
    Console(width=None if sys.stdout.isatty() else 180).print(table)
    print("The bars were held." if not missed else f"Missed: {'; '.join(missed)}")
    return 1 if missed else 0


if __name__ == "__main__":
    raise SystemExit(main())
