"""HTML from Python values: all text is escaped, so a run may be named `<script>`."""

from __future__ import annotations

import html
import json
import math
from collections.abc import Iterable, Sequence
from typing import Any


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


Content = str | int | float | None | Iterable["Content"]


def render(content: Content) -> Markup:
    """Convert `content` to HTML: Markup stays, other text is escaped, lists are joined, None is empty."""
    if content is None:
        return Markup()
    if isinstance(content, Markup):
        return content
    if isinstance(content, str | int | float):
        return Markup(html.escape(str(content)))
    return Markup("".join(map(render, content)))


def tag(name: str, *content: Content, **attributes: Any) -> Markup:
    """Make an element; `class_` is class, `data_x` is data-x; None and False omit an attribute, True has no value."""
    words = [name]
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        key = key.rstrip("_").replace("_", "-")
        words.append(key if value is True else f'{key}="{html.escape(str(value))}"')
    return Markup(f"<{' '.join(words)}>{render(content)}</{name}>")


def cell(value: Any, *, digits: int | None = None) -> Markup:
    """Make a table cell; numbers are right-aligned and sort by value, a missing one is a dash."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return tag("td", "–", class_="number missing")
    if isinstance(value, bool) or not isinstance(value, int | float):
        return tag("td", str(value))
    text = f"{value:.{digits}f}" if digits is not None else f"{value:,}".replace(",", "\u202f")
    return tag("td", text, class_="number", data_value=value)


def table(header: Sequence[Content], rows: Iterable[Sequence[Markup]], **attributes: Any) -> Markup:
    """Make a table of ready cells with sortable columns; headers of numbers are right-aligned."""
    rows = list(rows)
    over_numbers = [bool(rows) and 'class="number' in rows[0][place] for place in range(len(header))]
    head = tag(
        "tr", [sort_header(text, class_=right and "number") for text, right in zip(header, over_numbers, strict=True)]
    )
    body = [tag("tr", row) for row in rows]
    return wide(tag("table", tag("thead", head), tag("tbody", body), class_="sortable", **attributes))


def sort_header(*content: Content, **attributes: Any) -> Markup:
    return tag("th", tag("button", *content, type="button"), scope="col", aria_sort="none", **attributes)


def wide(content: Markup) -> Markup:
    """Put `content` in a box that scrolls sideways, by keyboard too, where the screen is narrow."""
    return tag("div", content, class_="wide", tabindex="0")


def embedded_json(value: Any) -> Markup:
    """Convert `value` to JSON that cannot end its script element; refuse NaN, which JSON lacks."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)
