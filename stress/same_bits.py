"""Train every method for a few epochs with an earlier revision and with the tree as it is: are the bits the same?

    python stress/same_bits.py [--before REVISION] [--methods kl ppo ...] [--epochs 20] [--out FILE.json]

Both train on Hopper with the same settings, seed and libraries. Compared are the weights and the normaliser of the last
checkpoint, every evaluation and every metric that both record. "Same" is bit for bit; else the table says how far the
weights are apart and in which epoch a metric first differs. For the pull request that answers "can this move results?".
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table
from safetensors.numpy import load_file

ROOT = Path(__file__).parent.parent
METHODS = ("kl", "kl-e", "w2", "w2-e", "frobenius", "frobenius-e", "kl-joint", "ppo", "ppo-m", "papi", "trpo")
SETTINGS = ("--rollout-size", "512", "--eval-every", "5", "--eval-episodes", "1", "--seed", "1")


class Compared(NamedTuple):
    """One method, before and after."""

    method: str
    same_weights: bool
    weights_apart: float  # largest difference of a weight, relative to the largest weight of its array
    same_evaluations: bool
    first_difference: str  # metric and epoch, empty where all are the same
    metrics_apart: float  # largest relative difference of a metric in any epoch
    words: str = ""  # what went wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--before", default="be4a452", metavar="REVISION", help="what to compare with (be4a452, 0.1.0)")
    parser.add_argument("--methods", nargs="+", default=METHODS, choices=METHODS, metavar="METHOD")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--out", type=Path, help="write what was found there as JSON")
    options = parser.parse_args()
    found = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        before = folder / "before"
        before.mkdir()
        packed = subprocess.run(
            ["git", "archive", options.before, "src"], cwd=ROOT, stdout=subprocess.PIPE, check=True
        ).stdout
        subprocess.run(["tar", "-x", "-C", str(before)], input=packed, check=True)
        for method in options.methods:
            runs = [folder / f"{method}-{which}" for which in ("before", "after")]
            problems = [
                train(source, method, run, options.epochs)
                for source, run in zip((before / "src", ROOT / "src"), runs, strict=True)
            ]
            problem = "; ".join(filter(None, problems))
            found.append(
                Compared(method, False, np.nan, False, "", np.nan, problem) if problem else compare(method, *runs)
            )
            print(found[-1], flush=True)
    show(found)
    if options.out:
        options.out.write_text(json.dumps([row._asdict() for row in found], indent=1) + "\n", encoding="utf-8")
    return 0 if all(row.same_weights and not row.words for row in found) else 1


def train(source: Path, method: str, run: Path, epochs: int) -> str:
    """Train with the package at `source`; gives the last line of what went wrong."""
    words = ["train", method, "Hopper-v4", "--quiet", "--out", str(run), "--steps", str(512 * epochs), *SETTINGS]
    variables = {**os.environ, "PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"}
    code = "import sys, trpl.cli; assert trpl.__file__.startswith(sys.argv.pop(1)); sys.exit(trpl.cli.main())"
    done = subprocess.run(
        [sys.executable, "-c", code, str(source), *words], env=variables, capture_output=True, text=True
    )
    return "" if done.returncode == 0 else (done.stderr.strip().splitlines() or ["?"])[-1]


def compare(method: str, before: Path, after: Path) -> Compared:
    """Compare two run folders."""
    one, other = (load_file(max((run / "checkpoints").glob("0*")) / "policy.safetensors") for run in (before, after))
    shared = sorted(one.keys() & other.keys())
    apart = max(np.abs(one[key] - other[key]).max() / max(np.abs(one[key]).max(), 1e-30) for key in shared)
    evaluations = [lines(run / "evaluations.jsonl", ("epoch", "returns")) for run in (before, after)]
    rows = [read(run / "metrics.jsonl") for run in (before, after)]
    first, largest = "", 0.0
    for row, twin in zip(*rows, strict=True):
        for key in row.keys() & twin.keys():
            x, y = row[key], twin[key]
            if x != y and isinstance(x, float | int) and isinstance(y, float | int):
                first = first or f"{key}, epoch {row['epoch']}"
                largest = max(largest, abs(x - y) / max(abs(x), abs(y)))
    same = all(one[key].tobytes() == other[key].tobytes() for key in shared)
    return Compared(method, same, float(apart), evaluations[0] == evaluations[1], first, largest)


def read(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def lines(path: Path, keys: tuple[str, ...]) -> list[list]:
    return [[row[key] for key in keys] for row in read(path)]


def show(found: list[Compared]) -> None:
    table = Table("method", "weights", "apart by", "evaluations", "metrics first differ in", "by at most", "")
    for row in found:
        table.add_row(
            row.method,
            "same" if row.same_weights else "differ",
            f"{row.weights_apart:.1g}",
            "same" if row.same_evaluations else "differ",
            row.first_difference or "none",
            f"{row.metrics_apart:.1g}",
            row.words,
        )
    Console(width=140).print(table)


if __name__ == "__main__":
    sys.exit(main())
