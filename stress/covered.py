"""How much of the maths and of the trainer the tests reach: lines and branches, by group and by file.

    coverage run -m pytest; coverage combine; coverage json -o coverage.json; python stress/covered.py coverage.json

`make coverage` does all of it. Exit code 1 below 95 % of the lines or 90 % of the branches of either group.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

GROUPS = {
    "maths": (
        *("engines", "implicit", "linalg", "matrix_roots", "roots", "entropy_schedule", "gaussians", "projections"),
        *("families", "layers", "torch", "jax"),
    ),
    "trainer": ("policies", "rollouts", "algorithms", "settings", "methods", "presets", "runs", "sweeps", "tuning"),
}
LEAST_LINES, LEAST_BRANCHES = 0.95, 0.90


def share(summaries: list[dict[str, Any]], kind: str) -> float:
    """The covered share of `statements` or `branches`."""
    counted = {"statements": "covered_lines", "branches": "covered_branches"}[kind]
    total = sum(s[f"num_{kind}"] for s in summaries)
    return sum(s[counted] for s in summaries) / total if total else 1.0


def belongs(file: str, parts: tuple[str, ...]) -> bool:
    """Whether a file lies in one of these modules or folders of trpl."""
    return Path(file).parts[Path(file).parts.index("trpl") + 1].removesuffix(".py") in parts


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("file", type=Path, help="what `coverage json` wrote")
    files = json.loads(parser.parse_args().file.read_text())["files"]
    table, enough = Table("", "lines", "branches", "lines not reached"), True
    for group, parts in GROUPS.items():
        members = {file: found for file, found in sorted(files.items()) if belongs(file, parts)}
        summaries = [found["summary"] for found in members.values()]
        lines, branches = share(summaries, "statements"), share(summaries, "branches")
        enough &= lines >= LEAST_LINES and branches >= LEAST_BRANCHES
        table.add_row(f"[bold]{group}[/]", f"[bold]{lines:.1%}[/]", f"[bold]{branches:.1%}[/]", "")
        for file, found in members.items():
            summary = [found["summary"]]
            reached = share(summary, "statements"), share(summary, "branches")
            if min(reached) < 1.0:
                missing = ", ".join(map(str, found["missing_lines"]))
                table.add_row(f"  {file.partition('trpl/')[2]}", *(f"{part:.1%}" for part in reached), missing)
    Console().print(table)
    return 0 if enough else 1


if __name__ == "__main__":
    sys.exit(main())
