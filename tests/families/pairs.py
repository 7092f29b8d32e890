"""Pairs of policies of every family, as NumPy arrays, and in the frameworks."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np

import trpl

TYPES = {
    "categorical": trpl.Categorical,
    "bernoulli": trpl.Bernoulli,
    "beta": trpl.Beta,
    "diag": trpl.DiagGaussian,
    "full": trpl.FullGaussian,
}


@dataclass(frozen=True)
class Kind:
    """A family for the tests: the kinds of its parts and their sizes; one part alone is no product."""

    name: str
    parts: tuple[tuple[str, int], ...]

    def __str__(self) -> str:
        return self.name

    @property
    def kinds(self) -> list[str]:
        return [kind for kind, _ in self.parts]

    def draw(self, num: int, *, seed: int, size: float = 1.0) -> list[tuple[np.ndarray, ...]]:
        """Random policies, the arrays of each part."""
        rng = np.random.default_rng([seed, num, len(self.name)])
        return [_draw(rng, kind, num, dim, size) for kind, dim in self.parts]

    def make(self, parts, array=np.asarray):
        """The policy value of these arrays, in a framework."""
        made = tuple(TYPES[kind](*map(array, own)) for kind, own in zip(self.kinds, parts, strict=True))
        return made[0] if len(made) == 1 else trpl.Product(made)

    def arrays(self, policy) -> list:
        """All arrays of a policy value, in order."""
        return [x for part in (policy.parts if isinstance(policy, trpl.Product) else (policy,)) for x in part]

    def unflatten(self, arrays):
        """The policy value with these arrays."""
        rest, made = list(arrays), []
        for kind in self.kinds:
            fields = len(TYPES[kind]._fields)
            made.append(TYPES[kind](*rest[:fields]))
            rest = rest[fields:]
        return made[0] if len(made) == 1 else trpl.Product(tuple(made))


def _draw(rng: np.random.Generator, kind: str, num: int, dim: int, size: float) -> tuple[np.ndarray, ...]:
    noise = rng.normal(size=(2, num, dim))
    if kind in ("categorical", "bernoulli"):
        return (1.5 * size * noise[0],)
    if kind == "beta":
        return tuple(np.exp(0.7 * size * noise))
    if kind == "diag":
        return noise[0], np.exp(0.5 * size * noise[1])
    lower = np.tril(0.3 * rng.normal(size=(num, dim, dim)), -1)
    return noise[0], lower + np.exp(0.5 * size * noise[1])[..., None] * np.eye(dim)


KINDS = [
    Kind("two-classes", (("categorical", 2),)),
    Kind("categorical", (("categorical", 5),)),
    Kind("bernoulli", (("bernoulli", 3),)),
    Kind("beta", (("beta", 2),)),
    Kind("multi-discrete", (("categorical", 3), ("categorical", 5), ("categorical", 2))),
    Kind("hybrid", (("diag", 2), ("categorical", 4))),
    Kind("everything", (("full", 2), ("beta", 1), ("bernoulli", 2), ("categorical", 3), ("diag", 1))),
]
BY_NAME = {kind.name: kind for kind in KINDS}


@cache
def pair(name: str, num: int = 6, seed: int = 0):
    """A predicted and an old policy, clearly different from each other."""
    kind = BY_NAME[name]
    return kind.draw(num, seed=2 * seed), kind.draw(num, seed=2 * seed + 1)


BOUND = 0.05


def policies(kind: Kind, array, num: int = 6, seed: int = 0):
    """The pair in a framework."""
    return tuple(kind.make(x, array) for x in pair(kind.name, num, seed))


def options(kind: Kind, held: str | None, num: int = 6, seed: int = 0, bound: float = BOUND) -> dict:
    """A bound and an entropy a little above the old one's, both for each state, as NumPy arrays."""
    _, old = policies(kind, np.asarray, num, seed)
    named = {"bound": np.full(num, bound)}
    if held is not None:
        most = trpl.families.family_of(old).entropy_range(trpl.engines.NUMPY, old, named["bound"])[1]
        named[held] = trpl.entropy(old) + 0.3 * most
    return named


def applicable(kind: Kind, held: str | None) -> bool:
    """Of two classes, the entropy alone fixes the policy: there is no room for an equality beside the bound."""
    return not (kind.name == "two-classes" and held == "entropy")
