"""Time of every layer before and after: rows of `benchmarks/layers.py` with an earlier revision and with this tree.

    python benchmarks/before.py [--before REVISION] [--row KL] [--host jax] [--rounds 15] [--out bench/before.json]

Both trees answer in turns, each in a process of its own on the same core: a round is the median process time of some
calls before and after, in alternating order. The table has medians over the rounds of both times and of their ratio,
with its quartiles. A ratio of two neighbouring measurements keeps what a slow machine, or one that is busy for seconds
at a time, would otherwise hide. Rows that the earlier tree cannot compute are listed with its words.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import layers  # beside this file; sets threads and core
import numpy as np

ROOT = Path(__file__).parent.parent
SECONDS = 0.1
"""Length of a measurement: as many calls as fit, three at least."""
SLOWER = 1.03
HOSTS = ("eager", "jax")
FIRST = "be4a452"  # 0.1.0


class Tree:
    """A process that times rows with the package at `source`."""

    def __init__(self, source: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--serve", str(source)],
            env={**os.environ, "PYTHONPATH": str(source)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, *request: Any) -> Any:
        """Send a request, return its answer."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(json.dumps(request), file=self.process.stdin, flush=True)
        return json.loads(self.process.stdout.readline())


def serve(source: str) -> None:
    """Answer requests (row, host, dtype, number of calls) from standard input with seconds per call, or an error."""
    import trpl

    assert trpl.__file__.startswith(source), f"{trpl.__file__} is not of {source}"
    layers.torch.set_num_threads(1)
    layers.jax.config.update("jax_enable_x64", True)
    for line in sys.stdin:
        *case, calls = json.loads(line)
        try:
            answer = layers.medians(both_passes(*case), repeats=calls)[0]
        except Exception as error:
            answer = f"{type(error).__name__}: {error}"
        print(json.dumps(answer), flush=True)


@functools.lru_cache(maxsize=1)
def both_passes(name: str, host: str, dtype: str) -> Callable[[], Any]:
    """Make a row's call, forward and backward."""
    row = next(row for row in layers.ROWS if row.name == name)
    given = layers.inputs(row, dtype)
    return (layers.jax_call(row, given) if host == "jax" else layers.torch_call(row, given, compiled=False))[1]


def compare(before: Tree, after: Tree, *case: str, rounds: int) -> dict[str, Any]:
    """Time one row in turns."""
    found = {"case": case[0], "host": case[1], "dtype": case[2]}
    first = [tree.ask(*case, 3) for tree in (before, after)]
    wrong = [x for x in first if isinstance(x, str)]
    if wrong:
        return {**found, "words": wrong[0]}
    calls = max(3, int(SECONDS / max(first)))
    times = []
    for k in range(rounds):
        pair = [(i, (before, after)[i].ask(*case, calls)) for i in ((0, 1) if k % 2 else (1, 0))]
        times.append([seconds for _, seconds in sorted(pair)])
    old, new = np.transpose(times)
    low, middle, high = np.percentile(new / old, (25, 50, 75))
    return {
        **found, "before_milliseconds": 1e3 * np.median(old), "after_milliseconds": 1e3 * np.median(new),
        "ratio": middle, "quartiles": [low, high], "met": bool(middle <= SLOWER),
    }  # fmt: skip


def main() -> None:
    """Measure, print a table in Markdown, write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", default=FIRST, metavar="REVISION", help="what to compare with (the first release)")
    parser.add_argument("--row", default="", help="only rows whose name contains this")
    parser.add_argument("--host", choices=HOSTS, action="append")
    parser.add_argument("--dtype", choices=layers.DTYPES, action="append")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        serve(args.serve)
        return
    print("| case | kind | dtype | before, ms | after, ms | after ÷ before | quartiles |\n|" + " --- |" * 7, flush=True)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        packed = subprocess.run(["git", "archive", args.before, "src"], cwd=ROOT, stdout=subprocess.PIPE, check=True)
        subprocess.run(["tar", "-x", "-C", folder], input=packed.stdout, check=True)
        before, after = Tree(Path(folder).resolve() / "src"), Tree(ROOT.resolve() / "src")
        wanted = [row.name for row in layers.ROWS if args.row in row.name]
        for case in [(r, h, d) for d in args.dtype or ["float64"] for h in args.host or HOSTS for r in wanted]:
            rows.append(compare(before, after, *case, rounds=args.rounds))
            print(line(rows[-1]), flush=True)
            if args.out:
                args.out.write_text(json.dumps(rows, indent=2) + "\n")
        for tree in (before, after):
            tree.process.communicate()  # closes its input, which ends it


def line(row: dict[str, Any]) -> str:
    """Return a row of the table."""
    words = [row["case"], row["host"], row["dtype"]]
    if "words" in row:
        return f"| {' | '.join([*words, row['words'].splitlines()[0], '', '', ''])} |"
    low, high = row["quartiles"]
    words += [f"{row['before_milliseconds']:.3f}", f"{row['after_milliseconds']:.3f}", f"{row['ratio']:.2f}"]
    return f"| {' | '.join([*words, f'{low:.2f}–{high:.2f}'])} |"


if __name__ == "__main__":
    main()
