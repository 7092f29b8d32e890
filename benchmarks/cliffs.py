"""Growth of the layers' time with batch, dimension and bound: no cliff between neighbours.

    python benchmarks/cliffs.py [--layer joint] [--host jax] [--out bench/cliffs.json] [--figure docs/images/cliffs.svg]

One thread, float64, forward and backward with full covariances, process time, the least of several calls. The batch
grows from 1 to 65,536 by doubling, the dimension from 1 to 64, the bound from 1e-6 to 10, as a number and as a tensor.
Between neighbours the time may grow in proportion to the batch, with the third power of the dimension and not at all
with the bound; a step that is more than twice that, up or down, is a cliff.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from layers import FROBENIUS, JOINT, PLAIN_KL, W2, Row, inputs, jax_call, torch_call

# isort: split
import jax
import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

LAYERS = {"KL": PLAIN_KL, "W2": W2, "Frobenius": FROBENIUS, "joint KL": JOINT}
BATCHES = tuple(2**k for k in range(17))
DIMS = (1, 2, 3, 4, 6, 8, 12, 16, 17, 24, 32, 33, 48, 63, 64)
BOUNDS = tuple(float(f"{x:.1e}") for x in np.geomspace(1e-6, 10.0, 22))
LARGEST_STEP = 2.0
SECONDS = 0.15  # for each point


class Point(NamedTuple):
    """A layer on a batch, and what grows."""

    layer: str
    sweep: str
    x: float
    row: Row


class Cliff(NamedTuple):
    """Two neighbours, and by what factor the step between them is more than growth in proportion."""

    layer: str
    sweep: str
    before: float
    after: float
    step: float


def points(only: str) -> Iterator[Point]:
    """Every point of every sweep."""

    def row(layer: str, batch: int, dim: int, bound: float, *, tensor: bool = False) -> Row:
        return Row("", LAYERS[layer], (batch, dim), True, bound, 0.0, tensor=tensor)

    for layer in LAYERS:
        if only not in layer:
            continue
        yield from (Point(layer, "batch", n, row(layer, n, 6, 0.01)) for n in BATCHES)
        yield from (Point(layer, "dimension", d, row(layer, 64, d, 0.01)) for d in DIMS)
        yield from (Point(layer, "bound", b, row(layer, 128, 24, b)) for b in BOUNDS)
        yield from (Point(layer, "bound, a tensor", b, row(layer, 128, 24, b, tensor=True)) for b in BOUNDS)


def least(call: Callable[[], object]) -> float:
    """The least process time of a call in seconds, of as many calls as `SECONDS` allow."""
    call()
    times: list[float] = []
    begin = time.perf_counter()
    while len(times) < 3 or (time.perf_counter() - begin < SECONDS and len(times) < 200):
        start = time.process_time()
        call()
        times.append(time.process_time() - start)
    return min(times)


def cliffs(found: list[dict[str, Any]]) -> list[Cliff]:
    """The worst step of each sweep."""
    groups: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for point in found:
        groups.setdefault((point["layer"], point["sweep"]), []).append((point["x"], point["milliseconds"]))
    worst = []
    for (layer, sweep), line in groups.items():
        steps = []
        for (x, t), (x_next, t_next) in pairwise(line):
            growth = {"batch": x_next / x, "dimension": (x_next / x) ** 3}.get(sweep, 1.0)
            steps.append(Cliff(layer, sweep, x, x_next, max(t_next / t / growth, t / t_next)))
        worst.append(max(steps, key=lambda step: step.step))
    return worst


def draw(found: list[dict[str, Any]], file: Path) -> None:
    """Time by batch, dimension and bound, a line for each layer."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 3, figsize=(12, 3.6), sharey=True)
    for ax, sweep in zip(axes, ("batch", "dimension", "bound"), strict=True):
        for colour, layer in enumerate(LAYERS):
            for kind, style in ((sweep, "-"), (f"{sweep}, a tensor", ":")):
                line = [p for p in found if p["layer"] == layer and p["sweep"] == kind]
                if line:
                    label = layer if kind == sweep else None
                    times = [p["milliseconds"] for p in line]
                    ax.plot([p["x"] for p in line], times, style, color=f"C{colour}", label=label)
        ax.set(xscale="log", yscale="log", xlabel=sweep)
        ax.grid(alpha=0.3)
    axes[0].set_ylabel("ms, forward + backward")
    axes[0].legend()
    axes[2].set_title("dotted: the bound as a tensor", fontsize="medium")
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, bbox_inches="tight")


def main() -> None:
    """Measure, print the worst steps, write the JSON, draw the picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layer", default="", help="only layers whose name contains this")
    parser.add_argument("--host", choices=("eager", "jax"), default="eager")
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    parser.add_argument("--figure", type=Path, help="draw them")
    args = parser.parse_args()
    torch.set_num_threads(1)
    jax.config.update("jax_enable_x64", True)
    found = []
    for layer, sweep, x, row in track(list(points(args.layer)), "cliffs", console=Console(stderr=True)):
        given = inputs(row, "float64")
        _, both = jax_call(row, given) if args.host == "jax" else torch_call(row, given, compiled=False)
        found.append({"layer": layer, "sweep": sweep, "x": x, "milliseconds": 1e3 * least(both)})
    worst = cliffs(found)
    table = Table(title=f"The steepest step of each sweep, {args.host}; a cliff is more than {LARGEST_STEP:g}")
    for column in ("layer", "sweep", "from", "to", "step", ""):
        table.add_column(column, justify="left" if column in ("layer", "sweep") else "right")
    for layer, sweep, before, after, step in worst:
        table.add_row(layer, sweep, f"{before:g}", f"{after:g}", f"{step:.2f}", "✓" if step <= LARGEST_STEP else "✗")
    Console().print(table)
    if args.out:
        args.out.write_text(json.dumps({"table": [step._asdict() for step in worst], "points": found}, indent=2) + "\n")
    if args.figure:
        draw(found, args.figure)


if __name__ == "__main__":
    main()
