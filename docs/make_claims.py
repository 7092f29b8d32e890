"""The paper's claims, decided from the records in results/, with intervals over seeds.

    python docs/make_claims.py

Writes docs/generated/claims.md, which the page on results includes. A claim is a list of comparisons; each is decided
by Student's interval of the difference of two methods' means on one task: it holds when the interval lies above 0, does
not when it lies below, and is undecided in between, with the number of seeds it would take to see a difference of the
size seen in four of five repetitions. Runs of different folders are never compared with each other.
"""

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from trpl.reports import statistics, student
from trpl.reports.reading import Run, read_runs
from trpl.reports.scores import early_window, final_window

ROOT = Path(__file__).resolve().parent.parent
REACHER, HUMANOID = "reacher", "humanoid"
TABLES = {"table1": "Full budget of the paper", "first": "A million steps, a third of the budget"}
SMALL = ("Hopper-v4", "Walker2d-v4", "HalfCheetah-v4", "Ant-v4")
PROJECTIONS = ("kl", "w2", "frobenius")
BEFORE_THE_AUDIT = ("first", "long")  # measured the covariance after it was set, which says nothing of its bound
FIRST_EPOCHS = 20  # left out where the constancy of the KL is measured

Measure = Callable[[Run], float | None]


def mean_of(window: np.ndarray | None) -> float | None:
    return None if window is None else float(window.mean())


def variation(run: Run) -> float | None:
    """Deviation of the KL per epoch in units of its mean; negative, so that larger is steadier."""
    if not run.finished:
        return None
    kl = run.metrics.values["kl"][FIRST_EPOCHS:]
    return -float(kl.std() / kl.mean())


MEASURES: dict[str, Measure] = {
    "final return": lambda run: mean_of(final_window(run)),
    "return at 20 %": lambda run: mean_of(early_window(run)),
    "steadiness of the KL": variation,
}


class Comparison(NamedTuple):
    """That `first` is above `second` in `measure` on a task."""

    folder: str
    task: str
    first: str
    second: str
    measure: str = "final return"


def claims(table: str) -> Iterator[tuple[str, list[Comparison]]]:
    """The claims of the paper's section on experiments, as comparisons of runs in the folder `table`."""
    cheetah = "HalfCheetah-v4"
    order = [("ppo-m", "ppo"), ("ppo", "papi"), *((p, "ppo-m") for p in PROJECTIONS)]
    yield (
        "HalfCheetah, final: the projections are above PPO-M, PPO-M above PPO, PPO above PAPI",
        [Comparison(table, cheetah, *pair) for pair in order],
    )
    yield (
        "KL is the best projection without entropy control",
        [
            Comparison(HUMANOID if "Humanoid" in task else table, task, "kl", other)
            for task in ("Walker2d-v4", cheetah, "Ant-v4", "trpl/HumanoidPaper-v4")
            for other in ("w2", "frobenius")
        ],
    )
    yield (
        "PPO-M is below the projections on the small tasks",
        [Comparison(table, task, p, "ppo-m") for task in SMALL for p in PROJECTIONS],
    )
    yield (
        "Entropy control raises the final return on HalfCheetah and Ant",
        [Comparison(table, task, f"{p}-e", p) for task in (cheetah, "Ant-v4") for p in PROJECTIONS],
    )
    yield (
        "Entropy control is slower on Ant at 20 %",
        [Comparison(table, "Ant-v4", p, f"{p}-e", "return at 20 %") for p in PROJECTIONS],
    )
    yield (
        "The KL per epoch is steadier with projections than with PPO-M",
        [Comparison(table, task, p, "ppo-m", "steadiness of the KL") for task in SMALL for p in PROJECTIONS],
    )
    reacher = "trpl/Reacher5Sparse-v0"
    yield (
        "Reacher: the projections are above the baselines without context",
        [
            Comparison(REACHER, reacher, f"{p} shared", f"{other} shared")
            for p in PROJECTIONS
            for other in ("ppo", "ppo-m")
        ],
    )
    yield (
        "Reacher: W2 and KL gain with a covariance per state",
        [Comparison(REACHER, reacher, f"{p} contextual", f"{p} shared") for p in ("w2", "kl")],
    )


def runs_by_name(folder: str) -> dict[tuple[str, str], list[Run]]:
    """Runs of a folder by task and method, the variant after it where there is one: ENV/METHOD[/VARIANT]/seed-N."""
    path = ROOT / "results" / folder
    if not path.is_dir():
        return {}
    found: dict[tuple[str, str], list[Run]] = {}
    for run in read_runs([path])[0]:
        variant = run.path.parent.name
        name = run.method if variant == run.method else f"{run.method} {variant}"
        found.setdefault((run.env_id, name), []).append(run)
    return found


def values_by_seed(runs: list[Run], measure: Measure) -> dict[int, float]:
    values = {run.seed: measure(run) for run in runs}
    return {seed: value for seed, value in values.items() if value is not None}


def decided(comparison: Comparison, known: dict[str, dict[tuple[str, str], list[Run]]]) -> str:
    """One line of the table."""
    runs, measure = known[comparison.folder], MEASURES[comparison.measure]
    x, y = (values_by_seed(runs.get((comparison.task, n), []), measure) for n in (comparison.first, comparison.second))
    what = f"| {comparison.task} | {comparison.first} above {comparison.second} | {comparison.measure} "
    shared = sorted(x.keys() & y.keys())
    paired = len(shared) >= 2
    first, second = (np.array([v[s] for s in shared] if paired else list(v.values())) for v in (x, y))
    if len(first) < 2 or len(second) < 2:
        return f"{what}| {len(x)}, {len(y)} | – | – | not enough runs yet |"
    generator = np.random.default_rng(0)
    found = statistics.compare(statistics.mean_difference, [first], [second], paired=paired, generator=generator)
    value, low, high = (float(part) for part in found)
    if low > 0:
        verdict = "**holds**"
    elif high < 0:
        verdict = "**does not hold**"
    else:
        spread = np.std(first - second, ddof=1) if paired else math.hypot(np.std(first, ddof=1), np.std(second, ddof=1))
        verdict = f"undecided; about {student.runs_needed(value, float(spread))} seeds would tell"
    digits = 2 if abs(value) < 10 else 0
    interval = f"{low:.{digits}f} … {high:.{digits}f}"
    return f"{what}| {len(x)}, {len(y)} | {value:.{digits}f} | {interval} | {verdict} |"


def bounds(folder: str, runs: list[Run]) -> str | None:
    """How the network kept to its bounds: cells of a table, or None for methods without separate bounds."""
    bound = runs[0].config.get("mean_bound")
    if bound is None:
        return None
    largest = [float(np.max(run.metrics.values["before_mean_max"])) for run in runs]
    outside = [float(np.mean(run.metrics.values["before_mean"] > bound)) for run in runs]
    metrics = [run.metrics.values for run in runs]
    binds = [float(np.mean(values["before_cov"] > values["cov_bound"])) for values in metrics]
    worst = f"{min(largest):.2f} – {max(largest):.2f}"
    shares = [f"{100 * min(share):.0f} – {100 * max(share):.0f} %" for share in (outside, binds)]
    if folder in BEFORE_THE_AUDIT:
        shares[1] = "–"
    return f"{bound:g} | {worst} | {' | '.join(shares)} |"


def bound_lines(folder: str, known: dict[tuple[str, str], list[Run]]) -> list[str]:
    lines = [
        "| records | task | method | seeds | mean bound | worst state | mean outside | covariance binds |",
        "| --- | --- | --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for (task, name), runs in sorted(known.items()):
        finished = [run for run in runs if run.finished]
        if finished and (cells := bounds(folder, finished)):
            lines.append(f"| {folder} | {task} | {name} | {len(finished)} | {cells}")
    return lines if len(lines) > 2 else []


def claim_lines(table: str) -> list[str]:
    known = {folder: runs_by_name(folder) for folder in (table, REACHER, HUMANOID)}
    lines = []
    for words, comparisons in claims(table):
        rows = [decided(comparison, known) for comparison in comparisons]
        if all(row.endswith("not enough runs yet |") for row in rows):
            lines += [f"**{words}**: not enough runs yet.", ""]
            continue
        lines += [f"**{words}.**", "", "| task | claim | measure | seeds | difference | 95 % | verdict |"]
        lines += ["| --- | --- | --- | ---: | ---: | ---: | --- |", *rows, ""]
    commits = sorted({run.commit[:8] for by in known.values() for runs in by.values() for run in runs if run.commit})
    return [*lines, f"*`python docs/make_claims.py`; runs of commit {', '.join(commits) or '– (none are in yet)'}*", ""]


def main() -> None:
    lines = []
    for table, words in TABLES.items():
        lines += [f"### {words}", "", *claim_lines(table)]
    (ROOT / "docs" / "generated" / "claims.md").write_text("\n".join(lines), encoding="utf-8")
    lines = []
    for folder in (*TABLES, "long", REACHER, HUMANOID):
        found = bound_lines(folder, runs_by_name(folder))
        lines += [*found, ""] if found else []
    (ROOT / "docs" / "generated" / "kept.md").write_text("\n".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
