"""The report: one HTML page that needs no network, with figures (PNG, SVG) and tables (CSV) beside it."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any, NamedTuple

import numpy as np

from trpl.messages import needs

with needs("train"):
    from trpl.reports import sections, tables
    from trpl.reports.figures import report_figures
    from trpl.reports.groups import Group, group_runs
    from trpl.reports.look import Style, styles
    from trpl.reports.markup import embedded_json, render, tag
    from trpl.reports.reading import read_runs
    from trpl.reports.scores import Aggregates, Comparison, GroupScores, aggregate, comparisons, group_scores
    from trpl.reports.series import AUDIT, ENTROPY, KL, MEASURES, PARTS, RETURN, Curve, Measure, curve
    from trpl.reports.statistics import Estimate


class Report(NamedTuple):
    """Everything the page shows, computed once."""

    title: str
    groups: Sequence[Group]
    notes: Sequence[str]
    scores: Sequence[GroupScores]
    aggregates: Aggregates | None
    comparisons: Sequence[Comparison]
    curves: dict[tuple[Group, str], Curve]
    looks: dict[str, Style]

    def curve_of(self, group: Group, measure: Measure) -> Curve | None:
        return self.curves.get((group, measure.name))


def write_report(
    runs: Iterable[str | Path],
    out: str | Path,
    *,
    title: str = "Trust-region runs",
    by: Sequence[str] = (),
    figures: bool = True,
) -> Path:
    """Write a report: one HTML page with tables, curves and the constraint audit, and files beside it.

    Args:
        runs: Run folders, or folders of them. Runs of one method on one task are averaged, and must not differ in any
            setting but the seed.
        out: The folder for the page.
        title: The heading of the page.
        by: Settings that distinguish variants of a method.
        figures: Whether to write PNG and SVG files too.

    Returns:
        The page.

    Raises:
        RecordError: There are no runs, their records are damaged, or runs of one kind differ in a setting that is not
            in `by`.
    """
    report = build(runs, title=title, by=by)
    out = Path(out)
    out.mkdir(parents=True, exist_ok=True)
    beside = write_tables(report, out)
    if figures:
        beside += report_figures(report.groups, report.aggregates, out, curve_of=report.curve_of)
    page = out / "index.html"
    page.write_text(html(report, [file.name for file in beside]), encoding="utf-8")
    return page


def build(runs: Iterable[str | Path], *, title: str, by: Sequence[str]) -> Report:
    found, notes = read_runs(runs)
    groups = group_runs(found, by)
    scores = [group_scores(group) for group in groups]
    every = {(group, measure.name): curve(group, measure) for group in groups for measure in MEASURES}
    return Report(
        title=title,
        groups=groups,
        notes=[*notes, *_progress_notes(groups)],
        scores=scores,
        aggregates=aggregate(scores),
        comparisons=comparisons(scores),
        curves={key: line for key, line in every.items() if line is not None},
        looks=styles(groups),
    )


def _progress_notes(groups: Sequence[Group]) -> list[str]:
    notes = []
    for group in groups:
        notes += [
            f"{run.path}: stopped at {run.steps} of {run.total_steps} steps, left out as others of its kind ended"
            for run in group.unfinished
        ]
        if not group.finished and not group.stopped_as_planned:
            shortest = min(run.steps for run in group.runs)
            notes.append(
                f"{group.name} on {group.env_id}: no run has ended; curves go to {shortest} steps, no final number"
            )
    stopped = [f"{group.name} on {group.env_id}" for group in groups if group.stopped_as_planned]
    if stopped:
        notes.append(f"Stopped as planned (--stop-after), so without a final number: {', '.join(stopped)}.")
    return notes


def write_tables(report: Report, out: Path) -> list[Path]:
    """Write the report's tables as CSV, except empty ones."""
    every = {
        "table1": tables.table1(report.scores),
        "runs": tables.run_rows(report.scores),
        "comparisons": tables.comparison_rows(report.comparisons),
        "aggregates": tables.aggregate_rows(report.aggregates),
        "profiles": tables.profile_rows(report.aggregates),
        "audit": tables.audit_rows(report.groups),
        "hyperparameters": tables.hyperparameter_rows(report.groups),
        "curves": tables.curve_rows(report.curves),
    }
    written = []
    for name, rows in every.items():
        file = out / f"{name}.csv"
        if tables.write_csv(file, rows):
            written.append(file)
    return written


def html(report: Report, beside: Sequence[str]) -> str:
    """Return the page's text."""
    script = _asset("page.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    parts = dict(
        title=report.title,
        summary=sections.summary(report.groups),
        notes=sections.notes(report.notes, report.curves.values()),
        table1=sections.table1(report.scores),
        same_steps=sections.same_steps(report.scores),
        aggregates=sections.aggregates(report.aggregates),
        comparisons=sections.comparisons(report.comparisons),
        audit=sections.audit(report.groups),
        hyperparameters=sections.hyperparameters(report.groups),
        versions=sections.versions(report.groups),
        runs=sections.runs(tables.run_rows(report.scores)),
        files=tag("ul", [tag("li", tag("a", name, href=name)) for name in beside], class_="files"),
        data=embedded_json(chart_data(report)),
    )
    return Template(_asset("page.html")).substitute(
        {name: render(part) for name, part in parts.items()},
        style=_asset("page.css") + _method_colours(report.looks),
        script=script,
        script_hash=f"sha256-{digest}",  # allows the browser to run only this script
    )


@cache
def _asset(name: str) -> str:
    return files("trpl.reports").joinpath("assets", name).read_text(encoding="utf-8")


def _method_colours(looks: dict[str, Style]) -> str:
    light = "".join(f".m{number}{{--c:{look.colour}}}" for number, look in enumerate(looks.values()))
    dark = "".join(f".m{number}{{--c:{look.dark}}}" for number, look in enumerate(looks.values()))
    return f"{light}@media screen and (prefers-color-scheme:dark){{{dark}}}"


def chart_data(report: Report) -> dict[str, Any]:
    """Return the data for the page's script.

    Arrays of steps and seconds that several curves share are stored once, in `pool`.
    """
    pool: dict[tuple, int] = {}

    def shared(values: np.ndarray, digits: int) -> int | None:
        if np.isnan(values).any():
            return None
        return pool.setdefault(tuple(_numbers(values, digits)), len(pool))

    names = list(report.looks)
    lines = [
        {
            "measure": name, "task": group.env_id, "method": names.index(group.name),
            "steps": shared(line.steps, 10), "seconds": shared(line.seconds, 5),
            **_band(line.estimate),
        }
        for (group, name), line in report.curves.items()
    ]  # fmt: skip
    found = report.aggregates
    return {
        "methods": [{"name": name, "dash": look.dash} for name, look in report.looks.items()],
        "tasks": list(dict.fromkeys(group.env_id for group in report.groups)),
        "charts": CHARTS,
        "audit": [{"name": m.name, "label": f"{PARTS[part]}: {m.label}"} for part, ms in AUDIT.items() for m in ms],
        "lines": lines,
        "pool": [list(values) for values in pool],
        "profiles": found and {
            "thresholds": _numbers(found.thresholds),
            "lines": [
                {"method": names.index(entry.name), **_band(entry.profile)}
                for entry in found.methods
            ],
        },
    }  # fmt: skip


CHARTS = {
    "returns": {"measure": RETURN.name, "label": RETURN.label, "x": "steps", "log": False},
    "clock": {"measure": RETURN.name, "label": RETURN.label, "x": "seconds", "log": False},
    "kl": {"measure": KL.name, "label": KL.label, "x": "steps", "log": True},
    "entropy": {"measure": ENTROPY.name, "label": ENTROPY.label, "x": "steps", "log": False},
}


def _band(found: Estimate) -> dict[str, list[float | None]]:
    return {"mean": _numbers(found.value), "low": _numbers(found.low), "high": _numbers(found.high)}


def _numbers(values: np.ndarray, digits: int = 5) -> list[float | None]:
    """Round `values` to `digits` significant digits; None for non-finite ones."""
    return [float(f"{value:.{digits}g}") if np.isfinite(value) else None for value in np.asarray(values).tolist()]
