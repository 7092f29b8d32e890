"""Tables as rows of plain values, and as CSV; Table 1 includes the paper's numbers."""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from trpl.reports.groups import Group
from trpl.reports.scores import Aggregates, Comparison, GroupScores, Score, comparable_result, paper_table
from trpl.reports.series import PARTS, Curve, audit
from trpl.reports.statistics import Estimate

Row = dict[str, Any]
NUMBER = re.compile(r"[-+]?[\d.]+(e[-+]?\d+)?")


def table1(scores: Sequence[GroupScores]) -> list[Row]:
    """Make a row per method and task: both numbers of Table 1 with intervals, and the paper's of the same budget."""
    rows = []
    for entry in scores:
        group = entry.group
        task = paper_table()["tasks"].get(group.env_id)
        paper = comparable_result(group.method, group.env_id, group.total_steps)
        row: Row = {"task": group.env_id, "method": group.name, "total_steps": group.total_steps}
        for name, found in (("early", entry.early), ("final", entry.final), ("same_steps", entry.same_steps)):
            row |= _score(name, found)
        row["paper_total_steps"] = task and task["total_steps"]
        for column in ("early", "final"):
            mean, half_width = paper[column] if paper else (None, None)
            row |= {f"paper_{column}": mean, f"paper_{column}_half_width": half_width}
        rows.append(row)
    return rows


def _score(name: str, score: Score | None) -> Row:
    keys = (name, f"{name}_low", f"{name}_high", f"{name}_pooled_half_width", f"{name}_iqm", f"{name}_iqm_low",
            f"{name}_iqm_high", f"{name}_seeds")  # fmt: skip
    if score is None:
        return dict.fromkeys(keys)
    return dict(zip(keys, (*score.estimate, score.pooled, *score.iqm, len(score.seeds)), strict=True))


def run_rows(scores: Sequence[GroupScores]) -> list[Row]:
    """Make a row per run: its settings, progress and scores."""
    rows = []
    for entry in scores:
        for run in entry.group.every_run:
            own = {}
            for name in ("early", "final"):
                score = getattr(entry, name)
                known = dict(zip(score.seeds, score.values, strict=True)) if score and run in entry.group.runs else {}
                own[name] = known.get(run.seed)
            seconds = run.timings.values["seconds"]
            rows.append({
                "task": run.env_id, "method": entry.group.name, "seed": run.seed, "steps": run.steps,
                "total_steps": run.total_steps, "finished": run.finished, **own,
                "seconds": float(seconds[-1]) if seconds.size else None,
                "commit": run.commit, "created": run.created, "command": run.command, "folder": str(run.path),
            })  # fmt: skip
    return rows


def comparison_rows(found: Iterable[Comparison]) -> list[Row]:
    """Make a row per pair of methods on a task: difference of the final means and probability of improvement."""
    return [
        {
            "task": pair.first.env_id, "method": pair.first.name, "other": pair.second.name,
            "paired_seeds": pair.num_pairs or None,
            **_estimate("difference", pair.difference), **_estimate("probability", pair.probability),
        }
        for pair in found
    ]  # fmt: skip


def aggregate_rows(found: Aggregates | None) -> list[Row]:
    """Make a row per method: statistics over tasks, in units of the paper's PPO."""
    if found is None:
        return []
    names = ("iqm", "mean", "median", "optimality_gap")
    return [
        {"method": entry.name, "tasks": " ".join(found.tasks), "runs": entry.num_runs}
        | {key: value for name in names for key, value in _estimate(name, getattr(entry, name)).items()}
        for entry in found.methods
    ]


def profile_rows(found: Aggregates | None) -> list[Row]:
    """Make a row per method and threshold: the share of runs above it."""
    if found is None:
        return []
    return [
        {"method": entry.name, "threshold": threshold, **_estimate("share", Estimate(*values))}
        for entry in found.methods
        for threshold, *values in zip(found.thresholds, *entry.profile, strict=True)
    ]


def curve_rows(curves: Mapping[tuple[Group, str], Curve]) -> Iterable[Row]:
    """Make a row per point of each curve; `curves` by group and measure."""
    for (group, key), curve in curves.items():
        for epoch, steps, seconds, *values in zip(
            curve.epoch, curve.steps, curve.seconds, *curve.estimate, strict=True
        ):
            yield {
                "task": group.env_id, "method": group.name, "measure": key, "epoch": int(epoch), "steps": int(steps),
                "seconds": seconds, **_estimate("mean", Estimate(*values)),
            }  # fmt: skip


def audit_rows(groups: Iterable[Group]) -> list[Row]:
    """Make a row per group and part of the trust region: distances as multiples of the bound."""
    return [
        {"task": group.env_id, "method": group.name, "part": part, **found._asdict()}
        for group in groups
        for part in PARTS
        if (found := audit(group, part))
    ]


def hyperparameter_rows(groups: Sequence[Group]) -> list[Row]:
    """Make a row per group and setting."""
    return [
        {"task": group.env_id, "method": group.name, "setting": key, "value": json.dumps(value)}
        for group in groups
        for key, value in group.settings.items()
    ]


def write_csv(file: Path, rows: Iterable[Row]) -> bool:
    """Write `rows` as CSV, missing values as empty cells; return False, without a file, if there are none."""
    rows = iter(rows)
    first = next(rows, None)
    if first is None:
        return False
    with file.open("w", newline="", encoding="utf-8") as out:
        writer = csv.writer(out)
        writer.writerow(first)
        for row in chain([first], rows):
            writer.writerow(map(_cell, row.values()))
    return True


def _estimate(name: str, estimate: Estimate) -> Row:
    return {name: float(estimate.value), f"{name}_low": float(estimate.low), f"{name}_high": float(estimate.high)}


def _cell(value: Any) -> Any:
    if isinstance(value, float):
        return "" if math.isnan(value) else f"{value:.8g}"
    if isinstance(value, str) and value.startswith(("=", "+", "-", "@")) and not NUMBER.fullmatch(value):
        return f"'{value}"  # text, so that a spreadsheet does not take it for a formula
    return "" if value is None else value
