"""The look of methods, the same in every figure and on the page: colours for colour-blind readers, and dashes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.colors import to_hex

from trpl.methods import Style, find
from trpl.methods.palette import CYCLE, DASHES
from trpl.methods.registry import known
from trpl.reports.groups import Group

FEW_STEPS = 1e5
"""From this number of environment steps on, they are written in millions."""


def method_style(method: str) -> Style:
    """Find the style of a method that has one."""
    style = find(method).style
    assert style is not None
    return style


def styles(groups: Iterable[Group]) -> dict[str, Style]:
    """Choose a style for each name in `groups`: its method's; variants differ in dash or, if many, in colour."""
    methods: dict[str, list[str]] = {}
    for group in groups:
        names = methods.setdefault(group.method, [])
        if group.name not in names:
            names.append(group.name)
    styled = {}
    for number, method in enumerate(methods):
        registered = known(method)
        styled[method] = (registered and registered.style) or Style(*CYCLE[number % len(CYCLE)])
    found: dict[str, Style] = {}
    for method, names in methods.items():
        own = styled[method]
        taken = {*found.values(), *(style for other, style in styled.items() if other != method)}
        free = [style for dash in DASHES if (style := own._replace(dash=dash)) not in taken]
        if len(names) == 1:
            found[names[0]] = own
        elif len(methods) > 1 and len(names) <= len(free):
            found |= dict(zip(names, free, strict=False))
        else:
            for place, name in enumerate(names):
                dash = DASHES[place // len(CYCLE) % len(DASHES)]
                found[name] = Style(*CYCLE[place % len(CYCLE)], dash)
    return found


def line_style(dash: str) -> Any:
    """Convert a dash pattern to matplotlib's format."""
    return (0, tuple(float(part) / 1.5 for part in dash.split())) if dash else "-"


def lone_points(values: Any) -> dict[str, Any]:
    """Return the arguments of `plot` that mark points without a neighbour, through which no line goes."""
    finite = np.pad(np.isfinite(np.asarray(values, float)), 1)
    alone = np.flatnonzero(finite[1:-1] & ~finite[:-2] & ~finite[2:]).tolist()
    return {"marker": "o", "markersize": 3, "markevery": alone} if alone else {}


def sequence(count: int) -> list[Style]:
    """List styles from dark to light for rising values, in steps of the viridis map that are visible on white."""
    return [Style(colour, colour) for colour in map(to_hex, colormaps["viridis"](np.linspace(0.0, 0.85, count)))]


RC_PARAMS: dict[Any, Any] = {
    "font.size": 8, "axes.titlesize": 8, "axes.labelsize": 8, "legend.fontsize": 7.5,
    "xtick.labelsize": 7, "ytick.labelsize": 7, "lines.linewidth": 1.2, "legend.frameon": False,
    "axes.spines.top": False, "axes.spines.right": False, "axes.linewidth": 0.6, "axes.grid": True,
    "grid.color": "#e4e4e4", "grid.linewidth": 0.5, "axes.axisbelow": True,
    "svg.hashsalt": "trpl", "svg.fonttype": "none",
}  # fmt: skip
