"""The figures of the paper, from run folders (Figure 1 from the layers), and those of the report, as PNG and SVG."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.lines import Line2D

from trpl.errors import RecordError, UsageError
from trpl.methods import methods, palette
from trpl.methods.registry import known
from trpl.presets.tables import EPISODIC, PAPER_REACHER, REACHER
from trpl.reports.groups import Group, controls_entropy, group_runs, method_label
from trpl.reports.interpolation import interpolation
from trpl.reports.look import FEW_STEPS, RC_PARAMS, Style, line_style, lone_points, sequence, styles
from trpl.reports.reading import Run, read_runs
from trpl.reports.scores import Aggregates
from trpl.reports.series import AUDIT, ENTROPY, KL, MEAN_DISTANCE, RETURN, Curve, Measure, curve

REACHERS = {
    REACHER: "5-link reacher, fixed targets",
    PAPER_REACHER: "5-link reacher, the paper's bouncing targets",
    EPISODIC: "5-link reacher, whole movements",
}
BOUND = {"color": "black", "linestyle": ":", "linewidth": 0.9}


class Line(NamedTuple):
    label: str
    style: Style
    curve: Curve


class Panel(NamedTuple):
    """One set of axes; `bound` is a dotted line across it."""

    title: str
    lines: Sequence[Line]
    ylabel: str
    log: bool = False
    bound: float | None = None


def draw(panels: Sequence[Panel], *, columns: int = 3, x: str = "steps") -> Figure:
    """Draw `panels` in even rows of at most `columns` with a shared legend; `x` is "steps" or "seconds"."""
    rows = -(-len(panels) // columns)
    columns = -(-len(panels) // rows)
    fullest_first = sorted(panels, key=lambda panel: -len(panel.lines))  # so that the legend has the lines' order
    legend = {line.label: line.style for panel in fullest_first for line in panel.lines}
    entry = 0.5 + 0.06 * max(map(len, legend), default=0)  # inches: a line with its margins, and 0.06 per letter
    width = max(2.4 * columns if columns > 1 else 3.8, entry)
    legend_rows = -(-(len(legend) + 1) // min(2 * columns, max(int(width / entry), 1)))
    legend_columns = -(-(len(legend) + 1) // legend_rows)
    height = 1.95 * rows + 0.2 * legend_rows + 0.15
    figure = Figure(figsize=(width, height), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False)
    for axes in grid.flat[len(panels) :]:
        axes.set_axis_off()
    words, unit = _unit(panels, x)
    for number, (axes, panel) in enumerate(zip(grid.flat, panels, strict=False)):
        _draw_panel(axes, panel, x, unit)
        if number % columns == 0 or panel.ylabel != panels[number - 1].ylabel:
            axes.set_ylabel(panel.ylabel)
        if number + columns >= len(panels):
            axes.set_xlabel(words)
    handles = [
        Line2D([], [], color=style.colour, linestyle=line_style(style.dash), label=label)
        for label, style in legend.items()
    ]
    if any(panel.bound is not None for panel in panels):
        handles.append(Line2D([], [], label="bound", **BOUND))
    _without_formulas(figure.legend(handles=handles, loc="outside lower center", ncols=legend_columns))
    return figure


def _unit(panels: Sequence[Panel], x: str) -> tuple[str, float]:
    """Return the label of the axis across and its unit: millions of steps or hours, or smaller ones where few."""
    most = max((float(getattr(line.curve, x)[-1]) for panel in panels for line in panel.lines), default=0.0)
    if x == "seconds":
        units = (("hours", 3600.0), ("minutes", 60.0))  # from two of them on, as on the page
        word, unit = next((pair for pair in units if most >= 2 * pair[1]), ("seconds", 1.0))
        return f"wall-clock time ({word})", unit
    return ("environment steps (millions)", 1e6) if most >= FEW_STEPS else ("environment steps", 1.0)


def _draw_panel(axes: Axes, panel: Panel, x: str, unit: float) -> None:
    for line in reversed(panel.lines):  # the first is drawn last, on top
        across = getattr(line.curve, x) / unit
        value, low, high = line.curve.estimate
        width = 0.8 if panel.log else None
        dash = line_style(line.style.dash)
        axes.plot(across, value, color=line.style.colour, linestyle=dash, linewidth=width, **lone_points(value))
        axes.fill_between(across, low, high, color=line.style.colour, alpha=0.16, linewidth=0)
    if panel.bound is not None:
        axes.axhline(panel.bound, **BOUND)
        axes.set_ylim(bottom=0)
    if panel.log:
        axes.set_yscale("log")
    axes.set_title(panel.title, parse_math=False)
    axes.margins(x=0)
    axes.set_xlim(left=0)


CurveOf = Callable[[Group, Measure], Curve | None]


def task_panels(groups: Sequence[Group], measure: Measure, *, curve_of: CurveOf = curve, **options: Any) -> list[Panel]:
    """Make a panel per task with a line per group that recorded `measure`."""
    chosen = styles(groups)
    panels = []
    for env_id in dict.fromkeys(group.env_id for group in groups):
        here = [group for group in groups if group.env_id == env_id]
        lines = _lines(here, measure, lambda group: (group.name, chosen[group.name]), curve_of=curve_of)
        if lines:
            panels.append(Panel(_title(env_id, groups), lines, measure.label, **options))
    return panels


def _lines(
    groups: Sequence[Group],
    measure: Measure,
    look: Callable[[Group], tuple[str, Style]],
    *,
    curve_of: CurveOf = curve,
) -> list[Line]:
    """Make a line for each group that recorded `measure`, with the label and style that `look` gives it."""
    found = [(group, curve_of(group, measure)) for group in groups]
    return [Line(*look(group), line) for group, line in found if line is not None]


def _title(env_id: str, groups: Sequence[Group]) -> str:
    counts = {len(group.runs) for group in groups if group.env_id == env_id}
    seeds = f"{min(counts)}–{max(counts)} seeds" if len(counts) > 1 else f"{min(counts)} seed{'s' * (max(counts) > 1)}"
    return f"{REACHERS.get(env_id, env_id.removeprefix('trpl/'))} ({seeds})"


def _only(name: str, runs: Sequence[Run], wanted: Callable[[Run], bool], needs: str) -> list[Run]:
    """Return the `wanted` runs; if there are none, raise an error that says what the figure needs."""
    chosen = [run for run in runs if wanted(run)]
    if not chosen:
        given = ", ".join(dict.fromkeys(f"{run.method} on {run.env_id}" for run in runs))
        raise RecordError(f"figure {name!r} needs {needs}; given are {given}")
    return chosen


def curves(runs: Sequence[Run], by: Sequence[str] = ()) -> Figure:
    """Draw learning curves without entropy control (paper, appendix, first figure of the additional results)."""
    chosen = _only("curves", runs, lambda run: not controls_entropy(run.method), "runs without entropy control")
    return _draw_returns(task_panels(group_runs(chosen, by), RETURN))


def entropy_curves(runs: Sequence[Run], by: Sequence[str] = ()) -> Figure:
    """Draw learning curves with entropy control beside PPO and PAPI (paper, appendix, second figure)."""
    name = "entropy-curves"
    having = " or ".join(method.name for method in methods() if method.controls_entropy)
    chosen = _only(name, runs, lambda run: controls_entropy(run.method), f"runs of {having}")
    beside = [run for run in runs if (found := known(run.method)) and name in found.figures]
    return _draw_returns(task_panels(group_runs([*chosen, *beside], by), RETURN))


def _draw_returns(panels: Sequence[Panel], *, columns: int = 3) -> Figure:
    """Draw `panels` of returns, except those of tasks without evaluations; raise an error if nothing is left."""
    evaluated = [panel for panel in panels if panel.lines]
    if not evaluated:
        raise RecordError("there is no return to draw: no method has an evaluation that all of its runs have")
    return draw(evaluated, columns=columns)


def kl_change(runs: Sequence[Run], by: Sequence[str] = ()) -> Figure:
    """Draw the mean KL between the policies before and after each epoch (paper, Figure 2, left)."""
    return draw(task_panels(group_runs(runs, by), KL, log=True))


def penalty_ablation(runs: Sequence[Run]) -> Figure:
    """Draw the unprojected mean's distance from the old one by α and for full regression (paper, Figure 2, centre)."""
    chosen = _only(
        "penalty-ablation",
        runs,
        lambda run: bool(run.config.get("regression")) and not np.isnan(_distance(run)).all(),
        "runs of a projection with a mean_bound and different regression_weight",
    )
    groups = group_runs(chosen, by=("regression", "regression_weight"))
    weights = sorted(
        {dict(g.variant)["regression_weight"] for g in groups if dict(g.variant)["regression"] == "penalty"}
    )
    shades = dict(zip(weights, sequence(len(weights)), strict=True))

    def look(group: Group) -> tuple[str, Style]:
        setting = dict(group.variant)
        if setting["regression"] == "full":
            return "full regression", Style(*palette.BLACK, palette.DASHED)
        return f"α = {setting['regression_weight']:g}", shades[setting["regression_weight"]]

    panels = []
    for method, env_id in dict.fromkeys((group.method, group.env_id) for group in groups):
        here = [group for group in groups if (group.method, group.env_id) == (method, env_id)]
        here.sort(key=lambda group: dict(group.variant)["regression"] == "full")
        lines = _lines(here, MEAN_DISTANCE, look)
        bound = here[0].runs[0].metrics.values["mean_bound"][-1]
        title = f"{method_label(method)}, {_title(env_id, here)}"
        panels.append(Panel(title, lines, "distance to the old mean", bound=float(bound)))
    return draw(panels)


def _distance(run: Run) -> np.ndarray:
    """Return the network's distance from the old mean over its bound; NaN where either is missing."""
    return run.metrics.values["before_mean"] / run.metrics.values["mean_bound"]


def reacher(runs: Sequence[Run]) -> Figure:
    """Draw the return on the five-link reacher, without and with (dashed) contextual covariance.

    Paper, Figure 2, right.
    """
    needs = f"runs of {' or '.join(REACHERS)}"
    groups = group_runs(_only("reacher", runs, lambda run: run.env_id in REACHERS, needs), by=("contextual",))
    chosen = styles([replace(group, variant=()) for group in groups])

    def look(group: Group) -> tuple[str, Style]:
        plain, contextual = method_label(group.method), dict(group.variant)["contextual"]
        style = chosen[plain]._replace(dash=palette.DASHED if contextual else "")
        return f"{plain}, contextual" if contextual else plain, style

    panels = []
    for env_id in dict.fromkeys(group.env_id for group in groups):
        here = [group for group in groups if group.env_id == env_id]
        panels.append(Panel(_title(env_id, here), _lines(here, RETURN, look), RETURN.label))
    return _draw_returns(panels, columns=2)


def audit_panels(groups: Sequence[Group], part: str, *, curve_of: CurveOf = curve) -> list[Panel]:
    """Make panels of the network's and the projection's distances, as multiples of the bound; a row per task."""
    chosen = [measure for measure in AUDIT[part] if measure.key != f"after_{part}"]
    by_measure = [task_panels(groups, measure, curve_of=curve_of, bound=1.0) for measure in chosen]
    return [
        panel._replace(title=f"{panel.title}\n{measure.label}", ylabel="distance / bound")
        for row in zip(*by_measure, strict=True)
        for panel, measure in zip(row, chosen, strict=True)
    ]


def profiles(found: Aggregates, look: dict[str, Style]) -> Figure:
    """Draw performance profiles: the share of runs above each score, over all tasks."""
    figure = Figure(figsize=(4.6, 3.0), layout="constrained")
    axes = figure.subplots()
    for entry in found.methods:
        style = look[entry.name]
        axes.plot(
            found.thresholds,
            entry.profile.value,
            color=style.colour,
            linestyle=line_style(style.dash),
            label=entry.name,
        )
        axes.fill_between(
            found.thresholds, entry.profile.low, entry.profile.high, color=style.colour, alpha=0.14, linewidth=0
        )
    axes.set_xlabel("normalised return τ (1 = the paper's PPO)")
    axes.set_ylabel("share of runs above τ")
    axes.set_ylim(0, 1.02)
    axes.set_xlim(found.thresholds[0], found.thresholds[-1])
    _without_formulas(figure.legend(loc="outside right upper"))
    return figure


def _without_formulas(legend: Legend) -> None:
    """Show names as they are: a dollar sign does not begin a formula."""
    for text in legend.get_texts():
        text.set_parse_math(False)


FROM_RUNS: dict[str, Callable[..., Figure]] = {
    "kl-change": kl_change,
    "penalty-ablation": penalty_ablation,
    "reacher": reacher,
    "curves": curves,
    "entropy-curves": entropy_curves,
}
FIGURES = ("interpolation", *FROM_RUNS)
VARIANTS = ("kl-change", "curves", "entropy-curves")  # figures whose methods can have variants


def write_figure(name: str, runs: Iterable[str | Path], out: str | Path, *, by: Sequence[str] = ()) -> list[Path]:
    """Write a figure of the paper as PNG and SVG.

    Args:
        name: The figure, one of `FIGURES`.
        runs: Run folders, or folders of them; `interpolation` needs none.
        out: The folder for the files.
        by: Settings that distinguish variants of a method.

    Returns:
        The files.

    Raises:
        ValueError: There is no such figure.
        UsageError: The figure distinguishes runs itself, so `by` does not apply.
        RecordError: The runs lack what the figure shows, or their records are damaged.
    """
    if name not in FIGURES:
        raise ValueError(f"no figure {name!r}; choose from {', '.join(FIGURES)}")
    if by and name not in VARIANTS:
        raise UsageError(f"figure {name!r} distinguishes runs itself; --by is for {', '.join(VARIANTS)}")
    options = {"by": by} if by else {}
    with mpl.rc_context(RC_PARAMS):
        figure = interpolation() if name == "interpolation" else FROM_RUNS[name](read_runs(runs)[0], **options)
        return save(figure, Path(out) / name)


def save(figure: Figure, stem: Path) -> list[Path]:
    """Write `figure` reproducibly as PNG and SVG.

    By their canvases directly, since `savefig` would draw each twice.
    """
    stem.parent.mkdir(parents=True, exist_ok=True)
    png, svg = (stem.with_name(f"{stem.name}.{kind}") for kind in ("png", "svg"))
    figure.set_dpi(200)
    FigureCanvasAgg(figure).print_png(png)
    figure.set_layout_engine("none")  # reuse the layout of the first
    FigureCanvasSVG(figure).print_svg(svg, metadata={"Date": None})
    return [png, svg]


def report_figures(
    groups: Sequence[Group], aggregates: Aggregates | None, out: Path, *, curve_of: CurveOf
) -> list[Path]:
    """Write the figures of the report into folder `out`; skip those without data."""
    with mpl.rc_context(RC_PARAMS):
        panels = {
            "returns": task_panels(groups, RETURN, curve_of=curve_of),
            "kl": task_panels(groups, KL, curve_of=curve_of, log=True),
            "entropy": task_panels(groups, ENTROPY, curve_of=curve_of),
            "audit-mean": audit_panels(groups, "mean", curve_of=curve_of),
            "audit-cov": audit_panels(groups, "cov", curve_of=curve_of),
            "audit-whole": audit_panels(groups, "whole", curve_of=curve_of),
        }
        columns = {"audit-whole": len(AUDIT["whole"])}  # a row per task
        drawn = {name: draw(found, columns=columns.get(name, 3)) for name, found in panels.items() if found}
        files = [file for name, figure in drawn.items() for file in save(figure, out / name)]
        timed = [
            panel._replace(lines=[line for line in panel.lines if np.isfinite(line.curve.seconds).all()])
            for panel in panels["returns"]
        ]
        if timed := [panel for panel in timed if panel.lines]:
            files += save(draw(timed, x="seconds"), out / "wall-clock")
        if aggregates is not None:
            files += save(profiles(aggregates, styles(groups)), out / "profiles")
    return files
