"""The table of families on the page about them, from the registry, by trying.

python docs/make_families.py [OUT_FILE]
"""

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

import trpl
from trpl.families import Policy, known_policies
from trpl.layers.layer import FREE, Bounds, Target, project, project_jointly
from trpl.projections.frobenius import Frobenius
from trpl.projections.kl.region import KL
from trpl.projections.wasserstein import Wasserstein

OUT = Path(__file__).resolve().parent / "generated" / "families.md"
ONE = np.array([[1.0, 2.0]])
EXAMPLES: dict[str, Policy] = {
    "DiagGaussian": trpl.DiagGaussian(ONE, ONE),
    "FullGaussian": trpl.FullGaussian(ONE, np.eye(2)[None]),
    "Categorical": trpl.Categorical(ONE),
    "Bernoulli": trpl.Bernoulli(ONE),
    "Beta": trpl.Beta(2.0 * ONE, ONE),
    "Product": trpl.Product((trpl.Categorical(ONE), trpl.Bernoulli(ONE))),
}
ELSEWHERE = {"SparseCategorical": "see [language models](language.md)"}
"""Families with a page of their own."""
SEPARATE = {
    "KLProjection": KL(),
    "WassersteinProjection": Wasserstein("commuting"),
    "FrobeniusProjection": Frobenius(False),
}


def works(call: Callable[[], object]) -> bool:
    """Whether a layer takes a policy."""
    try:
        call()
    except ValueError:
        return False
    return True


def row(name: str) -> str:
    """What one family has."""
    p = EXAMPLES[name]
    how = {"entropy_first": False, "check": True}
    layers = [
        f"`{layer}`"
        for layer, region in SEPARATE.items()
        if works(lambda r=region: project(r, p, p, Bounds(0.1, 0.1), FREE, **how))
    ]
    joint = ["`JointKLProjection`"] if works(lambda: project_jointly(p, p, 0.1, FREE, check=True)) else []
    if works(lambda: project_jointly(p, p, (0.1, 0.1), FREE, check=True)):
        joint.append("one bound or one per part")
    own = trpl.entropy(p)
    targets = {"at least": Target("minimum", own), "exactly": Target("equal", own)}
    held = [w for w, t in targets.items() if works(lambda t=t: project_jointly(p, p, 0.1, t, check=True))]
    fields = ", ".join(type(p)._fields)
    cells = (f"`{name}({fields})`", ", ".join(layers) or "–", ", ".join(joint) or "–", ", ".join([*held, "or free"]))
    return f"| {' | '.join(cells)} |"


def table() -> str:
    """A row for each registered value type.

    Raises:
        KeyError: If a family has neither an example here nor a page of its own.
    """
    rows = ["| value | separate bounds | one KL bound | entropy |", "| --- | --- | --- | --- |"]
    elsewhere = {name: f"| `{name}` | – | `JointKLProjection` | {page} |" for name, page in ELSEWHERE.items()}
    rows += [elsewhere.get(name) or row(name) for name in known_policies()]
    return "\n".join(rows) + "\n"


if __name__ == "__main__":
    (Path(sys.argv[1]) if len(sys.argv) > 1 else OUT).write_text(table(), encoding="utf-8")
