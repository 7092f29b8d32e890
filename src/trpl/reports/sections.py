"""The sections of the report's page with text and tables."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby

import numpy as np

from trpl.messages import decimals
from trpl.methods.registry import known
from trpl.reports.groups import Group, controls_entropy, place
from trpl.reports.look import FEW_STEPS
from trpl.reports.markup import Content, Markup, cell, render, sort_header, table, tag, wide
from trpl.reports.scores import (
    Aggregates,
    Comparison,
    GroupScores,
    Score,
    comparable_result,
    paper_result,
    paper_table,
)
from trpl.reports.series import PARTS, Curve
from trpl.reports.series import audit as audit_of
from trpl.reports.statistics import Estimate
from trpl.reports.tables import Row
from trpl.settings.config import WINDOW

ROWS_PER_BLOCK = 3  # of the paper's Table 1


def summary(groups: Sequence[Group]) -> Markup:
    runs = [run for group in groups for run in group.every_run]
    steps = sum(run.steps for run in runs)
    methods, tasks = len({group.name for group in groups}), len({group.env_id for group in groups})
    counts = (_count(len(runs), "run"), _count(methods, "method"), _count(tasks, "task"))
    return tag("p", f"{', '.join(counts)}; {_amount(steps)} environment steps in all.", class_="lead")


def _amount(steps: float) -> str:
    """Write a number of steps, in millions unless there are few."""
    return f"{steps / 1e6:.3g} M" if steps >= FEW_STEPS else f"{steps:,.0f}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def notes(words: Sequence[str], curves: Iterable[Curve]) -> Markup | None:
    thinned = [curve for curve in curves if len(curve.epoch) < curve.num_epochs]
    if thinned:
        points, epochs = max(len(curve.epoch) for curve in thinned), max(curve.num_epochs for curve in thinned)
        how = (
            f"Curves are thinned for display to {points} of up to {epochs} epochs, without smoothing; curves of a "
            "worst state show the largest value since the point before. Tables use every epoch."
        )
        words = [how, *words]
    if not words:
        return None
    shown = tag("ul", [tag("li", text) for text in words[:20]])
    rest = words[20:]
    more = (
        tag("details", tag("summary", f"{len(rest)} more"), tag("ul", [tag("li", text) for text in rest]))
        if rest
        else None
    )
    return tag("aside", tag("h2", "Notes"), shown, more, class_="notes")


def table1(scores: Sequence[GroupScores]) -> Markup:
    """Lay out Table 1 as in the paper: methods down, tasks across, 20 % and final for each."""
    tasks = list(dict.fromkeys(entry.group.env_id for entry in scores))
    names = _in_blocks({entry.group.name: entry.group.method for entry in scores})
    by_place = {(entry.group.name, entry.group.env_id): entry for entry in scores}
    digits = {task: _digits([entry for entry in scores if entry.group.env_id == task]) for task in tasks}
    best = _best(scores, digits)
    first = tag("tr", tag("td"), [tag("th", _task_header(task, scores), colspan=2, scope="colgroup") for task in tasks])
    second = tag(
        "tr", sort_header("Method"), [sort_header(text, class_="number") for _ in tasks for text in ("20 %", "final")]
    )
    rows = []
    for name, starts_block in names:
        cells = [tag("th", name, scope="row")]
        for task in tasks:
            entry = by_place.get((name, task))
            cells += [
                _score_cell(entry, column, best.get((task, column), ()), digits=digits[task])
                for column in ("early", "final")
            ]
        rows.append(tag("tr", cells, class_="block" if starts_block else None))
    head, body = tag("thead", first, second), tag("tbody", rows)
    return wide(tag("table", head, body, class_="sortable table1", id="table1"))


def _in_blocks(methods: dict[str, str]) -> list[tuple[str, bool]]:
    """List names in the paper's order, and whether each is the first of its block."""
    ordered = sorted(methods, key=lambda name: place(methods[name]))
    rows = [found.row if (found := known(methods[name])) else None for name in ordered]
    blocks = [None if row is None else row // ROWS_PER_BLOCK for row in rows]
    return [(name, i > 0 and blocks[i] != blocks[i - 1]) for i, name in enumerate(ordered)]


def _digits(scores: Sequence[GroupScores]) -> int:
    """Choose the decimals of one task's returns."""
    means = [float(score.estimate.value) for entry in scores for score in (entry.early, entry.final) if score]
    return decimals(*means, *(last for entry in scores if (last := recent(entry.group)) is not None))


def _best(scores: Sequence[GroupScores], digits: Mapping[str, int]) -> dict[tuple[str, str], list[str]]:
    """List the best methods by task and column, with and without entropy control separately as in the paper.

    Methods whose means are shown as the same number share the place.
    """
    shown: dict[tuple[str, str, bool], dict[str, float]] = {}
    for entry in scores:
        for column in ("early", "final"):
            score: Score | None = getattr(entry, column)
            task = entry.group.env_id
            key = (task, column, controls_entropy(entry.group.method))
            if score:
                shown.setdefault(key, {})[entry.group.name] = round(float(score.estimate.value), digits[task])
    best: dict[tuple[str, str], list[str]] = {}
    for (task, column, _), values in shown.items():
        top = max(values.values())
        best.setdefault((task, column), []).extend(name for name, value in values.items() if value == top)
    return best


def _task_header(task: str, scores: Sequence[GroupScores]) -> Content:
    budgets = sorted({entry.group.total_steps for entry in scores if entry.group.env_id == task})
    paper = paper_table()["tasks"].get(task)
    steps = ", ".join(map(_amount, budgets)) + " steps"
    beside = f"; paper: {paper['name']}, {paper['total_steps'] / 1e6:.3g} M" if paper else ""
    return [task.removeprefix("trpl/"), tag("small", steps + beside)]


def _score_cell(entry: GroupScores | None, column: str, best: Sequence[str], *, digits: int) -> Markup:
    if entry is None:
        return cell(None)
    score: Score | None = getattr(entry, column)
    paper = comparable_result(entry.group.method, entry.group.env_id, entry.group.total_steps)
    reported = tag("span", f"paper {paper[column][0]} ± {paper[column][1]}", class_="paper") if paper else None
    if score is None:
        going_on = column == "final" and not entry.group.stopped_as_planned
        reason, last = missing_reason(entry.group, column), recent(entry.group) if going_on else None
        so_far = None if last is None else tag("span", f"last evaluations {last:.{digits}f}", class_="ends")
        return tag("td", "–", tag("span", reason, class_="pooled"), so_far, reported, class_="number missing")
    value, low, high = (float(x) for x in score.estimate)
    number = tag("strong" if entry.group.name in best else "span", f"{value:.{digits}f}", class_="value")
    ends = f"[{low:.{digits}f}, {high:.{digits}f}]" if low == low else "no interval"
    spread = f"±{score.pooled:.{digits}f} pooled, " if score.pooled == score.pooled else ""  # none of one evaluation
    pooled = spread + _count(len(score.seeds), "seed")
    lines = (number, tag("span", ends, class_="ends"), tag("span", pooled, class_="pooled"), reported)
    return tag("td", lines, class_="number", data_value=value)


def missing_reason(group: Group, column: str) -> str:
    """Say why a number of Table 1 is missing."""
    epochs = max(len(run.metrics.epoch) for run in group.runs)
    if not any(run.evaluations.epoch.size for run in group.runs):
        return "not evaluated"
    if column == "final" and not group.finished:
        return "stopped before" if group.stopped_as_planned else "not finished"
    needed = WINDOW if column == "final" else group.runs[0].num_epochs // 5 + WINDOW
    return f"{epochs} of the {needed} epochs needed" if epochs < needed else "not evaluated there"


def recent(group: Group) -> float | None:
    """Average the last 20 evaluations so far, over seeds."""
    means = [run.evaluations.values["return"][-WINDOW:].mean() for run in group.runs if run.evaluations.epoch.size]
    return float(np.mean(means)) if means else None


def same_steps(scores: Sequence[GroupScores]) -> Markup | None:
    """Show our return after as many steps as the paper's 20 % column covers, if the budgets differ."""
    rows = []
    for entry in scores:
        group = entry.group
        paper = paper_result(group.method, group.env_id)
        if paper and entry.same_steps and not comparable_result(group.method, group.env_id, group.total_steps):
            steps = round(0.2 * paper_table()["tasks"][group.env_id]["total_steps"])
            numbers = [cell(float(x), digits=0) for x in entry.same_steps.estimate]
            rows.append([
                cell(group.env_id), cell(group.name), cell(steps),
                *numbers, cell(paper["early"][0]), cell(paper["early"][1]),
            ])  # fmt: skip
    if not rows:
        return None
    words = (
        "These runs have another budget than the paper's, so their 20 % is not its 20 %. Here both are read after the "
        "same number of environment steps; what is scheduled over the budget (learning rates, entropy) still differs."
    )
    header = ("Task", "Method", "Steps", "Return", "low", "high", "Paper", "±")
    return render([tag("h3", "At the steps of the paper's 20 % column"), tag("p", words), table(header, rows)])


def aggregates(found: Aggregates | None) -> Markup:
    if found is None:
        return tag("p", "Scores over tasks need final returns on tasks for which the paper reports PPO's.")
    rows = [
        [cell(entry.name), cell(entry.num_runs)]
        + [
            part
            for name in ("iqm", "mean", "median", "optimality_gap")
            for part in _estimate_cells(getattr(entry, name))
        ]
        for entry in found.methods
    ]
    tasks = ", ".join(task.removeprefix("trpl/") for task in found.tasks)
    words = (
        f"Final returns divided by what the paper reports for PPO (1 = the paper's PPO) on {tasks}. Methods that lack"
        " one of these are left out."
    )
    header = ("Method", "Runs", "IQM", "95 % interval", "Mean", "95 % interval", "Median", "95 % interval",
              "Optimality gap", "95 % interval")  # fmt: skip
    return render([tag("p", words), table(header, rows)])


def _estimate_cells(found: Estimate, digits: int = 2) -> list[Markup]:
    value, low, high = (float(x) for x in found)
    ends = tag(
        "td", f"[{low:.{digits}f}, {high:.{digits}f}]" if low == low else "–", class_="number ends", data_value=low
    )
    return [cell(value, digits=digits), ends]


def comparisons(pairs: Sequence[Comparison]) -> Markup:
    if not pairs:
        return tag("p", "Comparisons need final returns of two methods on one task.")
    rows = [
        [cell(pair.first.env_id), cell(pair.first.name), cell(pair.second.name),
         *_estimate_cells(pair.difference, decimals(*map(float, pair.difference))), *_estimate_cells(pair.probability),
         cell(f"{pair.num_pairs} pairs" if pair.paired else "unpaired")]
        for pair in pairs
    ]  # fmt: skip
    header = ("Task", "Method", "against", "Difference", "95 % interval", "P(better)", "95 % interval", "Seeds")
    shown = tag("details", tag("summary", f"{_count(len(pairs), 'pair')} of methods"), table(header, rows))
    return render([_alike(pairs), shown])


def _alike(pairs: Sequence[Comparison]) -> Markup | None:
    """Say of W2 and Frobenius, whose mean parts are equal, how often the part in which they differ was active."""
    compared = [pair for pair in pairs if {pair.first.method, pair.second.method} == {"w2", "frobenius"}]
    shares = [found.share_binding for pair in compared for group in (pair.first, pair.second)
              if (found := audit_of(group, "cov"))]  # fmt: skip
    if not shares:
        return None
    most = f"{100 * max(shares):.1f}"
    words = "W2 and Frobenius project means alike, so they are the same algorithm until the covariance bound binds: "
    return tag("p", f"{words}here in at most {most} % of a run's states (", tag("a", "audit", href="#audit"), ").")


def audit(groups: Sequence[Group]) -> Markup | None:
    rows = []
    for group in groups:
        for part, word in PARTS.items():
            found = audit_of(group, part)
            if found:
                rows.append([
                    cell(group.env_id), cell(group.name), cell(word), tag("td", f"{found.bound:.3g}", class_="number"),
                    cell(100 * found.share_binding, digits=1),
                    cell(found.network_mean, digits=2), cell(100 * found.share_outside, digits=1),
                    cell(found.network_worst, digits=2), cell(found.projected_mean, digits=2),
                    cell(found.projected_worst, digits=4),
                ])  # fmt: skip
    if not rows:
        return tag("p", "None of these runs has a bound to compare its policies with.")
    header = ("Task", "Method", "Part", "Bound", "Binds (% of states)", "Network, mean", "Epochs outside (%)",
              "Network, worst", "Projected, mean", "Projected, worst")  # fmt: skip
    return table(header, rows)


def hyperparameters(groups: Sequence[Group]) -> Markup:
    """List for each task the settings that differ between methods, then the common ones."""
    parts = []
    for task in dict.fromkeys(group.env_id for group in groups):
        here = [group for group in groups if group.env_id == task]
        keys = list(dict.fromkeys(key for group in here for key in group.settings))
        values = {key: [_setting(group, key) for group in here] for key in keys}
        differing = [key for key in keys if len(set(values[key])) > 1]
        shared = [key for key in keys if key not in differing]
        rows = [[tag("th", key, scope="row"), *(tag("td", text) for text in values[key])] for key in differing]
        apart = table(["Setting", *(group.name for group in here)], rows) if rows else None
        alike = tag("dl", [tag("div", tag("dt", key), tag("dd", values[key][0])) for key in shared], class_="settings")
        parts.append(
            tag("details", tag("summary", task), apart, tag("h3", "The same for all" if apart else "Settings"), alike)
        )
    return render(parts)


def _setting(group: Group, key: str) -> str:
    value = group.settings.get(key)
    return "–" if value is None else value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def versions(groups: Sequence[Group]) -> Markup:
    """List each set of versions and commit, with its number of runs; those of a resumed run one after another."""
    found = Counter(json.dumps(run.stretches, sort_keys=True) for group in groups for run in group.every_run)
    rows = []
    for text, count in found.most_common():
        commits, parts = zip(*json.loads(text), strict=True)
        names = sorted({name for part in parts for name in part})
        shown = (f"{name} {_in_turn(part.get(name, '–') for part in parts)}" for name in names)
        rows.append(
            [
                cell(count),
                tag("td", tag("code", _in_turn(commit or "–" for commit in commits))),
                tag("td", ", ".join(shown)),
            ]
        )
    return table(("Runs", "Commit", "Versions"), rows)


def _in_turn(values: Iterable[object]) -> str:
    return " → ".join(str(value) for value, _ in groupby(values))


def _run_returns(row: Row) -> list[Markup]:
    found = [row["early"], row["final"]]
    return [cell(value, digits=decimals(*(x for x in found if x is not None))) for value in found]


def runs(rows: Sequence[Row]) -> Markup:
    header = ("Task", "Method", "Seed", "Steps", "20 %", "Final", "Minutes", "Created", "Command", "Folder")
    body = [
        [cell(row["task"]), cell(row["method"]), cell(row["seed"]), cell(row["steps"]),
         *_run_returns(row),
         cell(row["seconds"] / 60 if row["seconds"] is not None else None, digits=1), cell(row["created"]),
         tag("td", tag("code", row["command"])), tag("td", tag("code", row["folder"]))]
        for row in rows
    ]  # fmt: skip
    return tag("details", tag("summary", _count(len(rows), "run")), table(header, body))
