"""PAPI as in the experiments of the trust-region layers' paper, and as originally published."""

from dataclasses import dataclass
from typing import Any

from trpl.methods import palette
from trpl.methods.clipped import CODE_LEVEL, COLUMNS, Clipped
from trpl.methods.method import Method, Style
from trpl.methods.registry import register
from trpl.settings import Real, setting


@dataclass(frozen=True, kw_only=True)
class Papi(Clipped):
    """PPO's settings and a bound on the expected KL."""

    bound: float = setting(0.015, "ε, bound on the whole KL", above=0.0, search=Real(2e-3, 0.2, log=True))


_columns = {table: {**values, **CODE_LEVEL} for table, values in COLUMNS.items()}
_columns["reacher"]["bound"] = 0.03
_common: dict[str, Any] = {
    "settings": Papi,
    "make": "trpl.algorithms.papi:make",
    "columns": _columns,
    "contextual": False,
    "needs_gaussian": True,
}
register(
    Method(
        name="papi",
        row=3,
        style=Style(*palette.PURPLE),
        source="{table}; {budget}",
        figures=("entropy-curves",),
        **_common,
    )
)
register(
    Method(
        name="papi-gradient",
        label="PAPI-G",
        style=Style(*palette.PURPLE, palette.DOTTED),
        source="{table}, PAPI column; {budget}",
        options={"through_projection": True},
        **_common,
    )
)
