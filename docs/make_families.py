"""The table of families on the page about them, from the registry.

python docs/make_families.py [OUT_FILE]
"""

import sys
from pathlib import Path

import numpy as np

import trpl
from trpl.families import family_of
from trpl.families.gaussian import GaussianFamily
from trpl.families.interpolated import Interpolated

OUT = Path(__file__).resolve().parent / "generated" / "families.md"
ONE = np.ones((1, 1))
EXAMPLES = [
    trpl.DiagGaussian(ONE, ONE),
    trpl.FullGaussian(ONE, ONE[None]),
    trpl.Categorical(ONE),
    trpl.Bernoulli(ONE),
    trpl.Beta(ONE, ONE),
    trpl.Product((trpl.Categorical(ONE),)),
]
SEPARATE = "`KLProjection`, `WassersteinProjection`, `FrobeniusProjection`"


def table() -> str:
    """A row for each value type, by what its family in the registry can do."""
    rows = ["| value | separate bounds | one KL bound | entropy |", "| --- | --- | --- | --- |"]
    for example in EXAMPLES:
        kind, family = type(example), family_of(example)
        fields = ", ".join(kind._fields)
        gaussian = isinstance(family, GaussianFamily)
        known = gaussian or isinstance(family, Interpolated)
        separate = SEPARATE if gaussian else "–"
        joint = "`JointKLProjection`" if known else "–"
        joint += ", one bound or one per part" if kind is trpl.Product else ""
        rows.append(f"| `{kind.__name__}({fields})` | {separate} | {joint} | at least, exactly, or free |")
    return "\n".join(rows) + "\n"


if __name__ == "__main__":
    (Path(sys.argv[1]) if len(sys.argv) > 1 else OUT).write_text(table(), encoding="utf-8")
