"""The two scores of the paper's Table 1 for each run, and their statistics for each group."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from functools import cache
from importlib.resources import files
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np

from trpl.reports import statistics
from trpl.reports.groups import Group
from trpl.reports.reading import Run
from trpl.reports.statistics import Estimate
from trpl.settings.config import WINDOW

BOOTSTRAP_SEED = 0
SAME_BUDGET = 0.01  # relative difference of budgets that count as equal


@cache
def paper_table() -> dict[str, Any]:
    """Read Table 1 of the paper: `tasks` with budgets, `results` by method, task and column as [mean, half-width]."""
    return json.loads(files("trpl.reports").joinpath("paper_table1.json").read_text(encoding="utf-8"))


def paper_result(method: str, env_id: str) -> dict[str, Any] | None:
    return paper_table()["results"].get(method, {}).get(env_id)


def comparable_result(method: str, env_id: str, total_steps: int) -> dict[str, Any] | None:
    """Return the paper's numbers for runs of the same budget, None if there are none."""
    task = paper_table()["tasks"].get(env_id)
    same_budget = task is not None and abs(total_steps / task["total_steps"] - 1) <= SAME_BUDGET
    return paper_result(method, env_id) if same_budget else None


def early_window(run: Run) -> np.ndarray | None:
    """Return the mean return of each evaluation in the 20 epochs after 20 % of training; None if incomplete."""
    return _window(run, run.num_epochs // 5)


def final_window(run: Run) -> np.ndarray | None:
    """Return the mean return of each evaluation in the last 20 epochs; None before training has ended."""
    return _window(run, len(run.metrics.epoch) - WINDOW) if run.finished else None


def window_after(run: Run, steps: float) -> np.ndarray | None:
    """Return the mean return of each evaluation in the 20 epochs after `steps` steps; None if incomplete."""
    found = _window(run, int((run.metrics.steps <= steps).sum()))
    return found if found is not None and len(found) == WINDOW else None


def _window(run: Run, start: int) -> np.ndarray | None:
    """Return the evaluations of 20 epochs, the first of them being number `start` (from 0)."""
    epoch = run.metrics.epoch
    if start < 0 or start + WINDOW > len(epoch):
        return None
    evaluated = run.evaluations.epoch
    inside = (evaluated >= epoch[start]) & (evaluated <= epoch[start + WINDOW - 1])
    return run.evaluations.values["return"][inside] if inside.any() else None


class Score(NamedTuple):
    """One score of the table: mean over seeds, its interval over seeds, the pooled ±, and the scores per seed."""

    estimate: Estimate
    pooled: float
    iqm: Estimate
    seeds: tuple[int, ...]
    values: np.ndarray


def score(runs: Sequence[Run], windows: Sequence[np.ndarray | None]) -> Score | None:
    """Compute the score of `runs` from the `windows` of those that have one; None if none has."""
    present = [(run.seed, window) for run, window in zip(runs, windows, strict=True) if window is not None]
    if not present:
        return None
    values = np.array([window.mean() for _, window in present])
    return Score(
        estimate=statistics.estimate(statistics.mean, [values], generator=_generator()),
        pooled=statistics.pooled_half_width(np.concatenate([window for _, window in present])),
        iqm=statistics.estimate(statistics.iqm, [values], generator=_generator()),
        seeds=tuple(seed for seed, _ in present),
        values=values,
    )


class GroupScores(NamedTuple):
    """A group's scores: `early` and `final` of its training, `same_steps` after as many steps as the paper's 20 %."""

    group: Group
    early: Score | None
    final: Score | None
    same_steps: Score | None


def group_scores(group: Group) -> GroupScores:
    task = paper_table()["tasks"].get(group.env_id)
    reach = [window_after(run, 0.2 * task["total_steps"]) if task else None for run in group.runs]
    return GroupScores(
        group=group,
        early=score(group.runs, [early_window(run) for run in group.runs]),
        final=score(group.runs, [final_window(run) for run in group.runs]),
        same_steps=score(group.runs, reach),
    )


class Comparison(NamedTuple):
    """Final returns of `first` against `second` on one task."""

    first: Group
    second: Group
    paired: bool
    num_pairs: int
    difference: Estimate
    probability: Estimate


def compare(first: GroupScores, second: GroupScores) -> Comparison | None:
    """Compare final means, by difference and probability of improvement; paired by seed if at least two seeds match."""
    if first.final is None or second.final is None:
        return None
    x, y = first.final, second.final
    shared = sorted(set(x.seeds) & set(y.seeds))
    paired = len(shared) >= 2
    if paired:
        scores, others = ([s.values[[s.seeds.index(seed) for seed in shared]]] for s in (x, y))
    else:
        scores, others = [x.values], [y.values]
    difference = statistics.compare(statistics.mean_difference, scores, others, paired=paired, generator=_generator())
    probability = statistics.compare(
        statistics.probability_of_improvement, scores, others, paired=paired, generator=_generator()
    )
    return Comparison(first.group, second.group, paired, len(shared) if paired else 0, difference, probability)


def comparisons(scores: Sequence[GroupScores]) -> list[Comparison]:
    """Compare each pair of groups on the same task, once."""
    pairs = (compare(a, b) for a, b in combinations(scores, 2) if a.group.env_id == b.group.env_id)
    return [pair for pair in pairs if pair is not None]


class Aggregate(NamedTuple):
    """One method over several tasks, with final returns divided by the paper's for PPO on each task."""

    name: str
    num_runs: int
    iqm: Estimate
    mean: Estimate
    median: Estimate
    optimality_gap: Estimate
    profile: Estimate


class Aggregates(NamedTuple):
    tasks: tuple[str, ...]
    thresholds: np.ndarray
    methods: tuple[Aggregate, ...]


def aggregate(scores: Sequence[GroupScores]) -> Aggregates | None:
    """Compute statistics over tasks, on the largest block of tasks × methods without gaps; None without such tasks."""
    known = paper_table()["tasks"]
    table = {(s.group.name, s.group.env_id): s.final for s in scores if s.final and s.group.env_id in known}
    tasks, names = _largest_block(table.keys())
    if not tasks:
        return None
    unit = {task: paper_table()["results"]["ppo"][task]["final"][0] for task in tasks}
    normalised = {name: [table[name, task].values / unit[task] for task in tasks] for name in names}
    highest = max(float(task.max()) for rows in normalised.values() for task in rows)
    thresholds = np.linspace(0.0, max(0.1, np.ceil(10 * highest) / 10), 101)

    def summary(name: str) -> Aggregate:
        rows = normalised[name]

        def found(statistic: Callable[[statistics.Scores], np.ndarray], num_resamples: int = 5000) -> Estimate:
            return statistics.estimate(statistic, rows, generator=_generator(), num_resamples=num_resamples)

        return Aggregate(
            name=name,
            num_runs=sum(map(len, rows)),
            iqm=found(statistics.iqm),
            mean=found(statistics.mean),
            median=found(statistics.median),
            optimality_gap=found(statistics.optimality_gap),
            profile=found(lambda drawn: statistics.performance_profile(drawn, thresholds), num_resamples=1000),
        )

    return Aggregates(tasks, thresholds, tuple(map(summary, names)))


def _largest_block(cells: Collection[tuple[str, str]]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Find tasks and names with every (name, task) in `cells`: as many cells as possible, then as many tasks."""
    tasks = list(dict.fromkeys(task for _, task in cells))
    names = list(dict.fromkeys(name for name, _ in cells))
    best: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
    for size in range(len(tasks), 0, -1):
        for chosen in combinations(tasks, size):
            complete = tuple(name for name in names if all((name, task) in cells for task in chosen))
            if len(complete) * size > len(best[0]) * len(best[1]):
                best = (chosen, complete)
    return best


def _generator() -> np.random.Generator:
    """Make a generator with the same seed for every number, so that reports are reproducible to the last digit."""
    return np.random.default_rng(BOOTSTRAP_SEED)
