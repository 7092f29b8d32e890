"""How a method looks, the same in every figure and on the page: colours for colour-blind readers too, and dashes."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from matplotlib import colormaps
from matplotlib.colors import to_hex


class Style(NamedTuple):
    """`colour` on white, `dark` on a dark page; `dash` in SVG's terms, "" for a solid line."""

    colour: str
    dark: str
    dash: str = ""


# Colours after Okabe and Ito (2008); a method with entropy control has its projection's colour, dashed.
_BLUE, _VERMILION, _GREEN = ("#0072b2", "#4aa8e0"), ("#d55e00", "#f0813a"), ("#009e73", "#2cc79a")
_PURPLE, _ORANGE, _SKY = ("#b45a8c", "#dd8fb8"), ("#b87f00", "#f0b429"), ("#3a9bd0", "#7cc7f0")
_BLACK, _GREY = ("#222222", "#e8e8e8"), ("#808080", "#9a9a9a")
_DASHED, _DOTTED, _DASH_DOT = "6 3", "2 2", "7 2 2 2"

_STYLES = {
    "kl": Style(*_BLUE), "w2": Style(*_VERMILION), "frobenius": Style(*_GREEN),
    "kl-e": Style(*_BLUE, _DASHED), "w2-e": Style(*_VERMILION, _DASHED), "frobenius-e": Style(*_GREEN, _DASHED),
    "ppo": Style(*_BLACK), "ppo-m": Style(*_GREY, _DASH_DOT),
    "papi": Style(*_PURPLE), "papi-gradient": Style(*_PURPLE, _DOTTED),
    "trpo": Style(*_ORANGE), "kl-joint": Style(*_SKY, _DASH_DOT),
}  # fmt: skip
_CYCLE = tuple(dict.fromkeys(style[:2] for style in _STYLES.values()))
_DASHES = ("", _DASHED, _DOTTED, _DASH_DOT)


def method_style(method: str) -> Style:
    return _STYLES[method]


def styles(groups) -> dict[str, Style]:
    """A style for each name in `groups`: its method's; variants of a method differ in dash or, if many, in colour."""
    methods: dict[str, list[str]] = {}
    for group in groups:
        names = methods.setdefault(group.method, [])
        if group.name not in names:
            names.append(group.name)
    found = {}
    for number, (method, names) in enumerate(methods.items()):
        own = _STYLES.get(method, Style(*_CYCLE[number % len(_CYCLE)]))
        if len(names) == 1:
            found[names[0]] = own
        elif len(methods) > 1 and len(names) <= len(_DASHES):
            found |= {name: own._replace(dash=dash) for name, dash in zip(names, _DASHES, strict=False)}
        else:
            for place, name in enumerate(names):
                dash = _DASHES[place // len(_CYCLE) % len(_DASHES)]
                found[name] = Style(*_CYCLE[place % len(_CYCLE)], dash)
    return found


def line_style(dash: str):
    """A dash pattern in matplotlib's terms."""
    return (0, tuple(float(part) / 1.5 for part in dash.split())) if dash else "-"


def sequence(count: int) -> list[Style]:
    """Styles from dark to light for values in rising order, in steps of the viridis map that all show on white."""
    return [Style(colour, colour) for colour in map(to_hex, colormaps["viridis"](np.linspace(0.0, 0.85, count)))]


LOOK = {
    "font.size": 8, "axes.titlesize": 8, "axes.labelsize": 8, "legend.fontsize": 7.5,
    "xtick.labelsize": 7, "ytick.labelsize": 7, "lines.linewidth": 1.2, "legend.frameon": False,
    "axes.spines.top": False, "axes.spines.right": False, "axes.linewidth": 0.6, "axes.grid": True,
    "grid.color": "#e4e4e4", "grid.linewidth": 0.5, "axes.axisbelow": True,
    "svg.hashsalt": "trpl", "svg.fonttype": "none",
}  # fmt: skip
