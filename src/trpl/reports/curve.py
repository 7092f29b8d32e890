"""The learning curve of one run, as PNG."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from matplotlib.figure import Figure

from trpl.runs import records
from trpl.runs.folder import CURVE, EVALUATIONS, METRICS, read_config


def learning_curve(run: str | Path) -> Path:
    """Write the learning curve of a run as PNG.

    Args:
        run: The run folder.

    Returns:
        The file, which is in the run folder.
    """
    path = Path(run) / CURVE
    curve_figure(run).savefig(path, dpi=150)
    return path


def curve_figure(run: str | Path) -> "Figure":
    """Draw the return over environment steps, of evaluations with their spread and of training; the KL below.

    Args:
        run: The run folder.

    Returns:
        The figure.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    from trpl.reports.look import lone_points

    run = Path(run)
    config = read_config(run)
    metrics, evaluations = records.read(run, METRICS), records.read(run, EVALUATIONS)

    figure = Figure(figsize=(7, 5), layout="constrained")
    FigureCanvasAgg(figure)
    top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    trained = [(line["steps"], line["train_return"]) for line in metrics if line.get("train_return") is not None]
    if trained:
        xs, ys = zip(*trained, strict=True)
        top.plot(xs, ys, color="0.7", linewidth=1, label="training episodes", **lone_points(ys))
    if evaluations:
        steps = np.array([line["steps"] for line in evaluations])
        returns = [np.asarray(line["returns"]) for line in evaluations]
        low, mean, high = (np.array([f(r) for r in returns]) for f in (np.min, np.mean, np.max))
        top.fill_between(steps, low, high, color="tab:blue", alpha=0.2, linewidth=0, label="evaluations, all episodes")
        top.plot(steps, mean, color="tab:blue", label="evaluations, mean", **lone_points(mean))
    top.set_ylabel("return")
    if top.has_data():
        top.legend(loc="best", frameon=False)
    top.set_title(f"{config.method} on {config.env_id}, seed {config.seed}", parse_math=False)
    shown = [(line["steps"], line["kl"]) for line in metrics if line.get("kl") is not None]
    if shown:
        xs, ys = zip(*shown, strict=True)
        bottom.plot(xs, ys, color="tab:orange", **lone_points(ys))
        bottom.set_ylim(0, 1.1 * max(ys) or None)
    bottom.set(ylabel="KL per epoch", xlabel="environment steps")
    return figure
