"""TRPO, which is not in the paper."""

from dataclasses import dataclass

from trpl.methods import palette
from trpl.methods.clipped import COLUMNS
from trpl.methods.method import Method, Style
from trpl.methods.registry import register
from trpl.settings import Config, Real, Whole, setting


@dataclass(frozen=True, kw_only=True)
class Trpo(Config):
    """Settings of the natural-gradient step."""

    bound: float = setting(0.01, "ε, bound on the whole KL", above=0.0, search=Real(1e-3, 0.1, log=True))
    cg_steps: int = setting(10, "conjugate-gradient steps", least=1, search=Whole(5, 30))
    cg_damping: float = setting(
        0.1, "added to the Fisher matrix's diagonal", least=0.0, search=Real(1e-3, 1.0, log=True)
    )
    line_search_steps: int = setting(10, "halvings tried by the line search", least=1)


register(
    Method(
        name="trpo",
        settings=Trpo,
        make="trpl.algorithms.trpo:make",
        style=Style(*palette.ORANGE),
        columns={table: {name: v for name, v in c.items() if name in Trpo.names()} for table, c in COLUMNS.items()},
        source="not in the paper: {table}, PPO-M column, and Schulman et al. (2015) for the rest; {budget}",
    )
)
