"""The paper's claims, decided from the records in results/, with intervals over seeds.

    python docs/make_claims.py

Writes docs/generated/claims.md, kept.md and late.md, which the page on results includes, and switches.md and
evaluation.md, which the page on reproducing the paper includes. A claim is a list of comparisons; each is decided by
Welch's interval of the difference of two methods' means on one task (a seed of one method has nothing in common with
the same seed of another): that one is above the other holds when the interval lies above 0, does not when it lies
below, and is undecided in between, with the number of seeds it would take to see a difference of the size seen in four
of five repetitions. That two are alike holds when the interval lies within a margin, and does not when it lies outside.
Runs of different folders are never compared with each other.
"""

import math
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from kept import kept_text, late_text
from measures import EARLY, FINAL, LENGTH, NEAR, STEADY, difference, values_of
from switches import evaluation_text, switch_text
from table1 import ROOT, caption, runs_by_name

from trpl.reports import student
from trpl.reports.reading import Run
from trpl.reports.scores import comparable_result

TABLE, REACHER, HUMANOID, ALPHA = "table1", "reacher", "humanoid", "alpha"
FIRST = "first"  # an earlier commit, a third of the budget
CHEETAH, ANT, HUMAN = "HalfCheetah-v4", "Ant-v4", "trpl/HumanoidPaper-v4"
REACH = "trpl/Reacher5Sparse-v0"
SMALL = ("Hopper-v4", "Walker2d-v4", CHEETAH, ANT)
PROJECTIONS = ("kl", "w2", "frobenius")
WEIGHTS = ("0.5", "2", "8", "32", "128")  # of the ablation of α, rising
COMMAND = "python docs/make_claims.py"
MOST_SEEDS = 1000  # that are worth a number
HOLDS, FAILS, OPEN, MISSING = "holds", "does not hold", "undecided", "not enough runs yet"
COUNTED = {  # in a count of comparisons: of one, of several
    HOLDS: (HOLDS, "hold"),
    FAILS: (FAILS, "do not hold"),
    OPEN: (OPEN, OPEN),
    MISSING: ("not run", "not run"),
}

Runs = dict[tuple[str, str], list[Run]]


class Comparison(NamedTuple):
    """That `first` is above `second` in `measure` on a task or, with a `margin`, that they are that near each other."""

    folder: str
    task: str
    first: str
    second: str
    measure: str = FINAL
    margin: float | None = None

    @property
    def words(self) -> str:
        between = "above" if self.margin is None else f"within {self.margin:g} of"
        return f"{self.first} {between} {self.second}"


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
    further = [
        Comparison(ALPHA, ANT, f"w2 alpha={small}", f"w2 alpha={large}", measure)
        for measure in (LENGTH, NEAR)
        for small, large in pairwise(WEIGHTS)
    ]
    alike = [Comparison(ALPHA, ANT, "w2 full", f"w2 alpha={x}", LENGTH, margin=0.1) for x in WEIGHTS[:3]]
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
                for other in ("w2", "frobenius", "papi", "ppo-m", "ppo")
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
            "A smaller α lets the network's mean move further, and so nearer to its bound; full regression is like "
            "some small α (Figure 2)",
            further + alike,
        ),
        Claim(
            "h",
            "Reacher (fixed targets): the projections are above the baselines without context; W2 and KL gain with a "
            "covariance per state, Frobenius and the baselines do not",
            [*bare, *context, *no_context],
        ),
        Claim(
            "i",
            "Theorem 1: what each projection does to the entropy",
            elsewhere=f"{HOLDS} on random policies to rounding: `pytest tests/projections/test_entropy_order.py`",
        ),
        Claim(
            "j",
            "The KL layer with entropy takes about 174 ms forward and backward at 512 × 17, and less than 1 ms where "
            "nothing is outside",
            elsewhere=layer_times(),
        ),
    ]


def layer_times() -> str:
    """What the layer takes by the last benchmark."""
    rows = [line.split(" | ") for line in (ROOT / "docs" / "generated" / "bench.md").read_text().splitlines()]
    times: dict[str, str] = {}
    for name, *cells in (row for row in rows if len(row) > 1):
        times.setdefault(name.removeprefix("| "), cells[0].split()[0])  # in float64 first
    full, inside = (times[f"joint KL{x}"] for x in (" with entropy, full 512 × 17", ", full 512 × 17, nothing outside"))
    return f"{full} ms; {inside} ms where nothing is outside (eager, one thread, another processor): [Speed](speed.md)"


class Decision(NamedTuple):
    """How a comparison came out: one of HOLDS, FAILS, OPEN, MISSING, and its line of a table."""

    verdict: str
    line: str


def decided(comparison: Comparison, runs: Runs) -> Decision:
    """Decide a comparison by Welch's interval."""
    task, measure, margin = comparison.task, comparison.measure, comparison.margin
    first, second = (values_of(runs.get((task, name), []), measure) for name in (comparison.first, comparison.second))
    what = f"| {task.removeprefix('trpl/')} | {comparison.words} | {measure} | {len(first)}, {len(second)} "
    if len(first) < 2 or len(second) < 2:
        return Decision(MISSING, f"{what}| – | – | {paper_difference(comparison, runs)} | {MISSING} |")
    value, low, high = difference(first, second)
    verdict = above(low, high) if margin is None else alike(low, high, margin)
    words = f"**{verdict}**"
    if verdict == OPEN:
        spread = math.hypot(np.std(first, ddof=1), np.std(second, ddof=1))
        needed = student.runs_needed(value if margin is None else abs(value) - margin, spread)
        words = (
            f"undecided; {f'about {needed}' if needed <= MOST_SEEDS else f'more than {MOST_SEEDS}'} seeds would tell"
        )
    size = max(abs(low), abs(high))
    digits = 4 if size < 0.1 else 2 if size < 100 else 0
    interval = f"{low:.{digits}f} … {high:.{digits}f}"
    paper = paper_difference(comparison, runs)
    return Decision(verdict, f"{what}| {value:.{digits}f} | {interval} | {paper} | {words} |")


def above(low: float, high: float) -> str:
    return HOLDS if low > 0 else FAILS if high < 0 else OPEN


def alike(low: float, high: float, margin: float) -> str:
    return HOLDS if -margin < low and high < margin else FAILS if low > margin or high < -margin else OPEN


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
    used = [run for folder, by in runs.items() if folder != FIRST for found in by.values() for run in found]
    earlier = caption(COMMAND, [run for found in runs[FIRST].values() for run in found])
    words = "**The same comparisons at a million steps**, a third of the paper's budget:"
    shorter = [words, "", *HEADER, *shorter, "", earlier]
    return "\n".join([*summary, "", caption(COMMAND, used), "", *details, *shorter, ""])


TEXTS = {"claims": claim_text, "kept": kept_text, "late": late_text, "switches": switch_text}
TEXTS["evaluation"] = evaluation_text


def main() -> None:
    for name, text in TEXTS.items():
        (ROOT / "docs" / "generated" / f"{name}.md").write_text(text(), encoding="utf-8")


if __name__ == "__main__":
    main()
