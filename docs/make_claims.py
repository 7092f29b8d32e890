"""The paper's claims, decided from the records in results/, with intervals over seeds.

    python docs/make_claims.py

Writes docs/generated/claims.md and kept.md, which the page on results includes, and switches.md, which the page on
reproducing the paper includes. A claim is a list of comparisons; each
is decided by Welch's interval of the difference of two methods' means on one task (a seed of one method has nothing in
common with the same seed of another): it holds when the interval lies above 0, does not when it lies below, and is
undecided in between, with the number of seeds it would take to see a difference of the size seen in four of five
repetitions. Runs of different folders are never compared with each other.
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from table1 import ROOT, by_cell, runs_of

from trpl.methods.registry import known
from trpl.reports import statistics, student
from trpl.reports.reading import Run
from trpl.reports.scores import comparable_result, early_window, final_window

TABLE, REACHER, HUMANOID, ALPHA = "table1", "reacher", "humanoid", "alpha"
FIRST = "first"  # an earlier commit, a third of the budget
CHEETAH, ANT, HUMAN = "HalfCheetah-v4", "Ant-v4", "trpl/HumanoidPaper-v4"
REACH = "trpl/Reacher5Sparse-v0"
SMALL = ("Hopper-v4", "Walker2d-v4", CHEETAH, ANT)
PROJECTIONS = ("kl", "w2", "frobenius")
FIRST_EPOCHS = 20  # left out where the constancy of the KL is measured
FINAL, EARLY, STEADY, NEAR = "final return", "return at 20 %", "steadiness of the KL", "nearness of the network"
HOLDS, FAILS, OPEN, MISSING = "holds", "does not hold", "undecided", "not enough runs yet"
COUNTED = {  # in a count of comparisons: of one, of several
    HOLDS: (HOLDS, "hold"),
    FAILS: (FAILS, "do not hold"),
    OPEN: (OPEN, OPEN),
    MISSING: ("not run", "not run"),
}

Measure = Callable[[Run], float | None]
Runs = dict[tuple[str, str], list[Run]]


def mean_of(window: np.ndarray | None) -> float | None:
    return None if window is None else float(window.mean())


def variation(run: Run) -> float | None:
    """Deviation of the KL per epoch in units of its mean; negative, so that larger is steadier."""
    if not run.finished:
        return None
    kl = run.metrics.values["kl"][FIRST_EPOCHS:]
    return -float(kl.std() / kl.mean())


def nearness(run: Run) -> float | None:
    """Mean distance of the network's means to the old policy's, over epochs; negative, so that larger is nearer."""
    return -float(run.metrics.values["before_mean"].mean()) if run.finished else None


MEASURES: dict[str, Measure] = {
    FINAL: lambda run: mean_of(final_window(run)),
    EARLY: lambda run: mean_of(early_window(run)),
    STEADY: variation,
    NEAR: nearness,
}


class Comparison(NamedTuple):
    """That `first` is above `second` in `measure` on a task."""

    folder: str
    task: str
    first: str
    second: str
    measure: str = FINAL


class Claim(NamedTuple):
    """What the paper says, as comparisons of runs; one without any is decided `elsewhere`."""

    letter: str
    words: str
    comparisons: Sequence[Comparison] = ()
    elsewhere: str = ""


def claims() -> list[Claim]:
    """The claims of the paper that are more robust than single numbers."""
    order = [*((p, "ppo-m") for p in PROJECTIONS), ("ppo-m", "ppo"), ("ppo", "papi"), ("kl", "ppo")]
    gains = [Comparison(TABLE, task, f"{p}-e", p) for task in (CHEETAH, ANT) for p in PROJECTIONS]
    bare = [Comparison(REACHER, REACH, f"{p} shared", f"{b} shared") for p in PROJECTIONS for b in ("ppo", "ppo-m")]
    context = [Comparison(REACHER, REACH, f"{p} contextual", f"{p} shared") for p in ("w2", "kl")]
    no_context = [Comparison(REACHER, REACH, f"{p} shared", f"{p} contextual") for p in ("frobenius", "ppo", "ppo-m")]
    weights = [("alpha=128", "alpha=8"), ("alpha=8", "alpha=0.5")]
    return [
        Claim(
            "a",
            "HalfCheetah, final: the projections are above PPO-M, PPO-M above PPO, PPO above PAPI; KL about 1400 above "
            "PPO",
            [Comparison(TABLE, CHEETAH, *pair) for pair in order],
        ),
        Claim(
            "b",
            "KL has the best final mean without entropy control on Walker2d, HalfCheetah, Ant and Humanoid",
            [
                Comparison(HUMANOID if task == HUMAN else TABLE, task, "kl", other)
                for task in ("Walker2d-v4", CHEETAH, ANT, HUMAN)
                for other in ("w2", "frobenius")
            ],
        ),
        Claim(
            "c",
            "PPO-M is below the projections on the four small tasks, and slow on Humanoid",
            [
                *(Comparison(TABLE, task, p, "ppo-m") for task in SMALL for p in PROJECTIONS),
                Comparison(HUMANOID, HUMAN, "kl", "ppo-m", EARLY),
            ],
        ),
        Claim(
            "d",
            "Entropy control raises the final return on HalfCheetah and Ant, and speeds up Humanoid",
            [*gains, Comparison(HUMANOID, HUMAN, "kl-e", "kl", EARLY)],
        ),
        Claim(
            "e",
            "Entropy control is slower on Ant at 20 %",
            [Comparison(TABLE, ANT, p, f"{p}-e", EARLY) for p in PROJECTIONS],
        ),
        Claim(
            "f",
            "The KL per epoch is nearly constant for projections and erratic for PPO-M",
            [Comparison(TABLE, task, p, "ppo-m", STEADY) for task in SMALL for p in PROJECTIONS],
        ),
        Claim(
            "g",
            "A smaller α lets the network's mean go nearer to its bound; small α resembles full regression (Figure 2)",
            [Comparison(ALPHA, ANT, f"w2 {x}", f"w2 {y}", NEAR) for x, y in weights],
        ),
        Claim(
            "h",
            "Reacher: the projections are above the baselines without context; W2 and KL gain with a covariance per "
            "state, Frobenius and the baselines do not",
            [*bare, *context, *no_context],
        ),
        Claim(
            "i",
            "Theorem 1: what each projection does to the entropy",
            elsewhere=f"{HOLDS} on random policies to rounding: `pytest tests/projections/test_entropy_order.py`",
        ),
        Claim(
            "j",
            "A layer costs little beside an update, at 512 × 17",
            elsewhere="measured by `python benchmarks/layers.py`: [Speed](speed.md)",
        ),
    ]


def runs_by_name(folder: str) -> Runs:
    """Runs of a folder by task and method, the variant after it where there is one: ENV/METHOD[/VARIANT]/seed-N."""
    found: Runs = {}
    for run in runs_of(folder):
        variant = run.path.parent.name
        name = run.method if variant == run.method else f"{run.method} {variant}"
        found.setdefault((run.env_id, name), []).append(run)
    return found


class Decision(NamedTuple):
    """How a comparison came out: one of HOLDS, FAILS, OPEN, MISSING, and its line of a table."""

    verdict: str
    line: str


def decided(comparison: Comparison, runs: Runs) -> Decision:
    """Decide a comparison by Welch's interval."""
    task, measure = comparison.task, MEASURES[comparison.measure]
    names = comparison.first, comparison.second
    values = [[measure(run) for run in runs.get((task, name), [])] for name in names]
    first, second = (np.array([value for value in found if value is not None]) for found in values)
    what = f"| {task.removeprefix('trpl/')} | {comparison.first} above {comparison.second} | {comparison.measure} "
    what += f"| {len(first)}, {len(second)} "
    if len(first) < 2 or len(second) < 2:
        return Decision(MISSING, f"{what}| – | – | {paper_difference(comparison, runs)} | {MISSING} |")
    value, low, high = difference(first, second)
    verdict = HOLDS if low > 0 else FAILS if high < 0 else OPEN
    words = f"**{verdict}**"
    if verdict == OPEN:
        spread = math.hypot(np.std(first, ddof=1), np.std(second, ddof=1))
        needed = student.runs_needed(value, spread)
        words = f"undecided; {f'about {needed}' if needed <= 1000 else 'more than 1000'} seeds would tell"
    size = max(abs(low), abs(high))
    digits = 4 if size < 0.1 else 2 if size < 100 else 0
    interval = f"{low:.{digits}f} … {high:.{digits}f}"
    paper = paper_difference(comparison, runs)
    return Decision(verdict, f"{what}| {value:.{digits}f} | {interval} | {paper} | {words} |")


def difference(first: np.ndarray, second: np.ndarray) -> tuple[float, float, float]:
    """The difference of two means over seeds, and Welch's interval."""
    generator = np.random.default_rng(0)
    found = statistics.compare(statistics.mean_difference, [first], [second], paired=False, generator=generator)
    value, low, high = (float(part) for part in found)
    return value, low, high


def paper_difference(comparison: Comparison, runs: Runs) -> str:
    """The same difference in the paper's Table 1, where the budget is the same."""
    column = {FINAL: "final", EARLY: "early"}.get(comparison.measure)
    numbers = []
    for name in (comparison.first, comparison.second):
        mine = runs.get((comparison.task, name))
        paper = comparable_result(name, comparison.task, mine[0].total_steps) if mine and column else None
        numbers.append(paper[column][0] if paper and column else None)
    return "–" if None in numbers else f"{numbers[0] - numbers[1]}"


def verdict_of(decisions: Sequence[Decision]) -> str:
    """How many comparisons of a claim came out how."""
    counts = Counter(decision.verdict for decision in decisions)
    if set(counts) == {MISSING}:
        return MISSING
    if set(counts) == {HOLDS}:
        return f"**{HOLDS}**"
    listed = ", ".join(f"{n} {words[n > 1]}" for verdict, words in COUNTED.items() if (n := counts[verdict]))
    return f"{len(decisions)} comparisons: {listed}"


HEADER = ["| task | claim | measure | seeds | difference | 95 % | paper | verdict |"]
HEADER += ["| --- | --- | --- | ---: | ---: | ---: | ---: | --- |"]


def claim_text() -> str:
    """A table of all claims, then the comparisons of those that have runs, at last those of a third of the budget."""
    every = claims()
    runs = {folder: runs_by_name(folder) for folder in (TABLE, REACHER, HUMANOID, ALPHA, FIRST)}
    summary = ["| | claim | here |", "| --- | --- | --- |"]
    details, shorter = [], []
    for claim in every:
        decisions = [decided(comparison, runs[comparison.folder]) for comparison in claim.comparisons]
        here = verdict_of(decisions) if decisions else claim.elsewhere
        summary.append(f"| {claim.letter} | {claim.words} | {here} |")
        shown = [decision.line for decision in decisions if decision.verdict != MISSING]
        details += [f"**({claim.letter}) {claim.words}.**", "", *HEADER, *shown, ""] if shown else []
        for comparison in claim.comparisons:
            if comparison.folder == TABLE:
                decision = decided(comparison, runs[FIRST])
                shorter += [decision.line] if decision.verdict != MISSING and decision.line not in shorter else []
    used = [by for folder, by in runs.items() if folder != FIRST]
    caption = f"*`python docs/make_claims.py`; runs of commit {commits_of(used)}*"
    earlier = commits_of([runs[FIRST]])
    words = f"**The same comparisons at a million steps**, a third of the paper's budget (commit {earlier}):"
    return "\n".join([*summary, "", caption, "", *details, words, "", *HEADER, *shorter, ""])


def commits_of(every: Sequence[Runs]) -> str:
    """The commits of these runs, short."""
    found = {run.commit[:8] for by in every for runs in by.values() for run in runs if run.commit}
    return ", ".join(sorted(found)) or "– (none are in yet)"


def bounds(folder: str, runs: list[Run]) -> str | None:
    """How the network kept to its bounds: cells of a table, or None for methods without separate bounds."""
    bound = runs[0].config.get("mean_bound")
    if bound is None or known(runs[0].method) is None:
        return None
    largest = [float(np.max(run.metrics.values["before_mean_max"])) for run in runs]
    outside = [float(np.mean(run.metrics.values["before_mean"] > bound)) for run in runs]
    metrics = [run.metrics.values for run in runs]
    binds = [float(np.mean(values["before_cov"] > values["cov_bound"])) for values in metrics]
    worst = span([f"{value:.2f}" for value in (min(largest), max(largest))])
    shares = [span([f"{100 * value:.0f}" for value in (min(share), max(share))]) + " %" for share in (outside, binds)]
    if folder == FIRST:  # measured the covariance after it was set, which says nothing of its bound
        shares[1] = "–"
    return f"{bound:g} | {worst} | {' | '.join(shares)} |"


def span(ends: Sequence[str]) -> str:
    """Write a range, or one number where both ends read the same."""
    return " – ".join(dict.fromkeys(ends))


def kept_text() -> str:
    """How the network kept to its bounds, for all records."""
    lines = [
        "| records | task | method | steps | seeds | mean bound | worst state | mean outside | covariance binds |",
        "| --- | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for folder in (TABLE, "late", ALPHA, FIRST, REACHER, HUMANOID):
        for (task, name), runs in sorted(runs_by_name(folder).items()):
            finished = [run for run in runs if run.finished]
            if finished and (cells := bounds(folder, finished)):
                steps = f"{finished[0].total_steps / 1e6:.3g} M"
                lines.append(
                    f"| {folder} | {task.removeprefix('trpl/')} | {name} | {steps} | {len(finished)} | {cells}"
                )
    return "\n".join(lines) + "\n"


SWITCHES = {  # variant of a plan: the option
    "released": "--as-released",
    "time-limits": "--released-time-limits",
    "penalty": "--released-penalty",
}


def switch_text() -> str:
    """What the release's switches do to the return at 20 %, beside the same method computed exactly."""
    whole, stopped, single = (runs_of(folder) for folder in (TABLE, "early", "switches"))
    without = by_cell(run for run in [*stopped, *whole] if not run.config["released_variance"])
    lines = ["| task | method | switch | seeds | with | without | difference, 95 % |"]
    lines.append("| --- | --- | --- | ---: | ---: | ---: | ---: |")
    for variant, option in SWITCHES.items():
        switched = by_cell(run for run in [*stopped, *single] if run.path.parent.name == variant)
        for (method, task), runs in sorted(switched.items(), key=lambda found: found[0][::-1]):
            values = [[MEASURES[EARLY](run) for run in found] for found in (runs, without.get((method, task), []))]
            first, second = (np.array([value for value in found if value is not None]) for found in values)
            if not len(first) or not len(second):
                continue
            apart = f"{first.mean() - second.mean():.0f}"
            if min(len(first), len(second)) > 1:
                _, low, high = difference(first, second)
                apart += f" ({low:.0f} … {high:.0f})"
            cells = [task, method, f"`{option}`", f"{len(first)}, {len(second)}"]
            cells += [f"{first.mean():.0f}", f"{second.mean():.0f}", apart]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    for name, text in (("claims", claim_text()), ("kept", kept_text()), ("switches", switch_text())):
        (ROOT / "docs" / "generated" / f"{name}.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
