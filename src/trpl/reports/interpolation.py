"""Figure 1 of the paper: covariances along each projection's path from the predicted to the old policy.

The projections' own code is used: for each η the bound is found at which the projection's multiplier is η, and the
projection itself gives the covariance.
"""

from __future__ import annotations

import matplotlib as mpl
import numpy as np
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Ellipse

from trpl.engines import NUMPY
from trpl.gaussians import DiagGaussian, entropy
from trpl.methods import palette
from trpl.projections.frobenius import Frobenius
from trpl.projections.kl.region import KL
from trpl.projections.regions import Region
from trpl.projections.wasserstein import Wasserstein
from trpl.reports.look import line_style, method_style
from trpl.types import cast

OLD = DiagGaussian(np.zeros(2), np.sqrt(np.array([5.0, 0.5])))
PREDICTED = DiagGaussian(np.zeros(2), np.sqrt(np.array([0.5, 5.0])))  # OLD rotated by 90°
MULTIPLIERS = np.array([0.1, 0.33, 0.66, 1.0, 3.33, 6.66, 10.0])
REGIONS: dict[str, Region] = {"frobenius": Frobenius(), "w2": Wasserstein(), "kl": KL()}
TITLES = {"frobenius": "Frobenius", "w2": "Wasserstein", "kl": "KL"}
NAMES_AT = {"frobenius": (4.0, 0.0), "w2": (20.0, 8.0), "kl": (4.0, -4.0)}
"""The η at which a name stands right of its curve, and points above it: where no curve crosses it."""


def interpolated(region: Region, multipliers: np.ndarray) -> DiagGaussian[np.ndarray]:
    """Return the projections of PREDICTED with these multipliers, as a batch.

    η falls as the bound ε rises, and is 0 if ε is the distance itself: bisection on log ε finds each bound.
    """
    old, predicted = (DiagGaussian(*(np.tile(part, (multipliers.size, 1)) for part in p)) for p in (OLD, PREDICTED))
    high = np.log(cast("np.ndarray", region.cov_distance(NUMPY, predicted, old)))
    low = high - 2.0 * np.log1p(multipliers) - 5.0
    with np.errstate(all="ignore"):  # trial steps of the root search may leave its domain; it rejects them
        for _ in range(60):
            middle = 0.5 * (low + high)
            found = cast("np.ndarray", region.cov_multiplier(NUMPY, predicted, old, np.exp(middle)))
            low, high = np.where(found > multipliers, middle, low), np.where(found > multipliers, high, middle)
        solved = region.solve_cov(NUMPY, predicted.std, old.std, np.exp(high), full=False, whole=True)
    assert solved is not None
    return predicted.with_scale(cast("np.ndarray", solved.outputs[0]))


def interpolation() -> Figure:
    """Draw 2σ ellipses of the three interpolations, and their entropies over η."""
    figure = Figure(figsize=(7.4, 2.35), layout="constrained")
    *ellipses, last = figure.subplots(1, 4, width_ratios=[1, 1, 1, 1.25])
    norm = LogNorm(MULTIPLIERS[0], MULTIPLIERS[-1])
    shades = mpl.colormaps["viridis"](0.9 * norm(MULTIPLIERS))
    sweep = np.geomspace(1e-4, 1e4, 401)
    for letter, axes, (name, region) in zip("abc", ellipses, REGIONS.items(), strict=True):
        for std, shade in zip(interpolated(region, MULTIPLIERS).std, shades, strict=True):
            axes.add_patch(_ellipse(std, edgecolor=shade, linewidth=0.9))
        axes.add_patch(_ellipse(OLD.std, edgecolor="black", linewidth=1.4))
        axes.add_patch(_ellipse(PREDICTED.std, edgecolor="black", linewidth=1.4, linestyle=(0, (3, 1.5))))
        axes.set(xlim=(-5, 5), ylim=(-5, 5), aspect="equal", xticks=(-4, 0, 4), yticks=(-4, 0, 4))
        axes.set_title(f"({letter}) {TITLES[name]}")
        style = method_style(name)
        values = entropy(interpolated(region, sweep))
        last.plot(sweep, values, color=style.colour)
        multiplier, above = NAMES_AT[name]
        beside = (multiplier, np.interp(multiplier, sweep, values))
        last.annotate(
            TITLES[name], beside, xytext=(5, above), textcoords="offset points", color=style.colour, fontsize="small"
        )
    handles = [
        Line2D([], [], color="black", linewidth=1.4, label="old"),
        Line2D([], [], color="black", linewidth=1.4, linestyle=(0, (3, 1.5)), label="predicted"),
        *(Line2D([], [], color=s, label=f"η = {m:g}") for s, m in zip(shades, MULTIPLIERS, strict=True)),
    ]
    figure.legend(handles=handles, loc="outside lower left", ncols=9, columnspacing=1.0, handlelength=1.3)
    last.axhline(float(entropy(OLD)), color="black", linewidth=0.8, linestyle=line_style(palette.DOTTED), zorder=0)
    last.set(xscale="log", title="(d) Entropy", xlabel="η", xticks=(1e-4, 1e-2, 1, 1e2, 1e4))
    return figure


def _ellipse(std: np.ndarray, **look) -> Ellipse:
    """Return the 2σ ellipse of a covariance diag(std²): diameters 4σ."""
    return Ellipse((0.0, 0.0), 4 * std[0], 4 * std[1], facecolor="none", **look)
