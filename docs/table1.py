"""Table 1 of the paper from the records in results/, in its layout and in both protocols, and what is in of each plan.

`make_results.py` writes what is made here; tests compare the two.
"""

import re
from collections.abc import Iterable
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

from trpl.methods import methods
from trpl.reports.reading import Run, read_runs
from trpl.reports.scores import Score, early_window, final_window, paper_result, paper_table, score
from trpl.sweeps.plan import planned_runs

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "results"
PLANS = (  # of the paper's tables and figures, of other tasks, and one that came before
    "table1", "table1-more", "early", "early-exact", "entropy", "entropy-kl", "papi", "reacher", "alpha", "late",
    "humanoid", "switches", "discrete", "episodic", "bounds", "first",
)  # fmt: skip
SAME_BITS = ({"9fd6c6c0", "5ed94e12", "dd4955aa"},)  # commits with the same bits (docs/results.md)


class Set(NamedTuple):
    """A plan of results/, where its records are, and how many of its runs are in."""

    name: str
    words: str
    records: str
    in_: int
    planned: int
    commits: tuple[str, ...]

    @property
    def command(self) -> str:
        return f"trpl sweep results/{self.name}.toml --out runs/{self.records} --results results/{self.records}"


def sets() -> list[Set]:
    """What each plan asks for and what is in."""
    found = []
    for plan in (RESULTS / f"{name}.toml" for name in PLANS):
        text = plan.read_text(encoding="utf-8")
        place = re.search(r"--results results/([\w-]+)", text)
        assert place, f"{plan} does not say where its records are"
        folders = [RESULTS / place[1] / run.folder for run in planned_runs(str(plan))]
        runs = [folder for folder in folders if (folder / "config.json").exists()]
        head = takewhile(lambda line: line.startswith("#"), text.splitlines())
        words = " ".join(line.lstrip("# ") for line in head if "trpl" not in line)
        commits = {run.commit[:8] for run in read_runs(runs)[0] if run.commit} if runs else set()
        found.append(Set(plan.stem, words, place[1], len(runs), len(folders), tuple(sorted(commits))))
    return found


def state() -> str:
    """The table of what is in."""
    lines = ["| plan | what | runs in | commit |", "| --- | --- | ---: | --- |"]
    for entry in sets():
        commits = ", ".join(f"`{commit}`" for commit in entry.commits) or "–"
        lines.append(f"| `{entry.name}.toml` | {entry.words} | {entry.in_} of {entry.planned} | {commits} |")
    return "\n".join(lines) + "\n"


def runs_of(folder: str) -> list[Run]:
    """The runs in a folder of results/, none where it is not there."""
    return list(_read(RESULTS / folder))


@cache
def _read(path: Path) -> tuple[Run, ...]:
    return tuple(read_runs([path])[0]) if path.is_dir() else ()


class Entry(NamedTuple):
    """A method on a task: the paper's two columns, and the first of them in the release's protocol."""

    early: Score | None
    final: Score | None
    released: Score | None


def entries() -> dict[tuple[str, str], Entry]:
    """Everything that Table 1 can show, by method and task.

    The 20 % column of exact runs is read from the runs of the whole budget and, for further seeds, from those that were
    stopped there: the two are the same to the last bit as far as they go.
    """
    whole, stopped = runs_of("table1") + runs_of("humanoid"), runs_of("early")
    exact = by_cell([*(run for run in stopped if not run.config["released_variance"]), *whole])
    released = by_cell(run for run in stopped if run.config["released_variance"])
    found = {}
    for cell in exact.keys() | released.keys():
        runs, quirky = exact.get(cell, []), released.get(cell, [])
        found[cell] = Entry(
            early=score(runs, [early_window(run) for run in runs]),
            final=score(runs, [final_window(run) for run in runs]),
            released=score(quirky, [early_window(run) for run in quirky]),
        )
    return found


def by_cell(runs: Iterable[Run]) -> dict[tuple[str, str], list[Run]]:
    """Runs by method and task, one for each seed: the last that is given."""
    cells: dict[tuple[str, str], dict[int, Run]] = {}
    for run in runs:
        cells.setdefault((run.method, run.env_id), {})[run.seed] = run
    return {cell: [seeds[seed] for seed in sorted(seeds)] for cell, seeds in cells.items()}


COLUMNS = {"early": "After a fifth of the budget (20 %)", "final": "Final"}


def runs_by_name(folder: str) -> dict[tuple[str, str], list[Run]]:
    """Runs of a folder by task and method, the variant after it where there is one: ENV/METHOD[/VARIANT]/seed-N."""
    found: dict[tuple[str, str], list[Run]] = {}
    for run in runs_of(folder):
        variant = run.path.parent.name
        name = run.method if variant == run.method else f"{run.method} {variant}"
        found.setdefault((run.env_id, name), []).append(run)
    return found


def caption(command: str, runs: Iterable[Run]) -> str:
    """The line under a table: what makes it, and the commits of its runs, which give the same bits."""
    commits = ", ".join(sorted({run.commit[:8] for run in runs if run.commit})) or "– (none are in yet)"
    return f"*`{command}`; runs of commit {commits}*"


def table1() -> str:
    """The paper's two columns as a table each, methods down and tasks across: ours, ours as released, the paper's."""
    shown = [run for folder in ("table1", "early", "humanoid") for run in runs_of(folder)]
    columns = [f"**{words}**\n\n{column_of_table1(column)}" for column, words in COLUMNS.items()]
    return "\n".join([*columns, caption("python docs/make_results.py", shown), ""])


def column_of_table1(column: str) -> str:
    tasks, found = paper_table()["tasks"], entries()
    lines = [["", *(task["name"].removesuffix("-v2") for task in tasks.values())], ["---", *["---:"] * len(tasks)]]
    for method in methods():
        if method.row is None:
            continue
        cells = [f"**{method.label}**"]
        for task in tasks:
            entry, paper = found.get((method.name, task)), paper_result(method.name, task)
            parts = [numbers(getattr(entry, column) if entry else None)]
            if column == "early" and entry and entry.released:
                parts += ["as released", numbers(entry.released)]
            if paper:
                parts.append(f"*paper {paper[column][0]} ± {paper[column][1]}*")
            cells.append("<br>".join(parts))
        lines.append(cells)
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def other(folder: str) -> str:
    """Tasks the paper does not have: the last 20 evaluations, and the largest distance after the projection over ε."""
    lines = ["| task | method | steps | last 20 evaluations | each seed | largest distance after projection ÷ ε |"]
    lines.append("| --- | --- | ---: | ---: | ---: | ---: |")
    for (method, task), runs in sorted(by_cell(runs_of(folder)).items(), key=lambda found: found[0][::-1]):
        found = score(runs, [final_window(run) for run in runs])
        each = ", ".join(f"{value:.0f}" for value in found.values) if found else ""
        held = max(furthest(run) for run in runs) if method == "kl" else None
        cells = [task, method, f"{runs[0].total_steps:,}", numbers(found), each]
        lines.append(f"| {' | '.join(cells)} | {'no bound' if held is None else f'{held:.6f}'} |")
    return "\n".join(lines) + "\n"


def furthest(run: Run) -> float:
    """The largest distance after the projection in any state of any epoch, as a share of its bound."""
    found = run.metrics.values
    parts = {"after_mean_max": "mean_bound", "after_cov_max": "cov_bound"}
    if run.config["bound"] is not None:
        parts = {"after_mean_max": "bound"}
    return max(float(max(found[after] / found[bound])) for after, bound in parts.items())


def numbers(found: Score | None) -> str:
    """Mean ± half the width of Student's interval and the number of seeds; of two, what each has."""
    if found is None:
        return "–"
    value, low, high = (float(part) for part in found.estimate)
    count = len(found.seeds)
    if count < 3:
        return (
            f"**{value:.0f}** ({count}{': ' * (count > 1)}{', '.join(f'{v:.0f}' for v in found.values if count > 1)})"
        )
    return f"**{value:.0f}** ± {(high - low) / 2:.0f} ({count})"
