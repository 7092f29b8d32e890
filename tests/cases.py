"""The conformance list: every projection by name. A new one joins here and inherits all properties."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

import reference
from frameworks import FRAMEWORKS, Torch, as_pair, policies
from generators import Pair


@dataclass(frozen=True)
class Case:
    """A projection: its layer, its options, the metric of its bound, and the entropy that takes part in it."""

    name: str
    layer: str
    metric: str
    options: dict[str, Any] = field(default_factory=dict)
    entropy: str | None = None  # "min_entropy" or "entropy", for the joint projection

    def __str__(self) -> str:
        return self.name

    @property
    def joint(self) -> bool:
        return self.layer == "JointKLProjection"

    def make(self, framework, mean_bound: Any = 0.03, cov_bound: Any = 0.01, **options):
        """The layer; the joint one takes the mean's bound for its only one."""
        make = getattr(framework.layers, self.layer)
        if self.joint:
            return make(mean_bound, **self.options, **options)
        return make(mean_bound, cov_bound, **self.options, **options)

    def call_options(
        self, framework, pair: Pair, dtype: str = "float64", *, mean_bound=0.03, cov_bound=0.01, offset=0.5
    ):
        """Bounds for each state, and an entropy `offset` of the way from the old one to the greatest possible."""
        batch = pair.mean.shape[:-1]
        named = {"bound": mean_bound} if self.joint else {"mean_bound": mean_bound, "cov_bound": cov_bound}
        if self.entropy is not None:
            named[self.entropy] = reference.entropy(pair.kind, pair.old_scale) + offset * entropy_room(
                mean_bound, pair.dim
            )
        return {k: framework.array(np.broadcast_to(v, batch), dtype) for k, v in named.items()}

    def excess(self, pair: Pair, *, mean_bound=0.03, cov_bound=0.01) -> tuple[np.ndarray, ...]:
        """By how much each bound is exceeded, relative to it; by the reference formulas."""
        mean, cov = reference.mean_part(self.metric, pair), reference.cov_part(self.metric, pair)
        if self.joint:
            return ((mean + cov) / mean_bound - 1.0,)
        return mean / mean_bound - 1.0, cov / cov_bound - 1.0


def entropy_room(bound: np.ndarray | float, dim: int) -> np.ndarray:
    """How much entropy a KL of `bound` can add: scaling the covariance by c = e^s, (d/2)(e^s − 1 − s) = ε."""
    share = 2.0 * np.asarray(bound, dtype=np.float64) / dim
    log_c = np.log1p(np.sqrt(2.0 * share) + share)  # above the root, so that Newton comes down to it
    for _ in range(30):
        log_c = log_c - (np.expm1(log_c) - log_c - share) / np.expm1(log_c)
    return 0.5 * dim * log_c


CASES = [
    Case("kl", "KLProjection", "kl"),
    Case("w2", "WassersteinProjection", "w2"),
    Case("w2-exact", "WassersteinProjection", "w2-exact", {"form": "exact"}),
    Case("frobenius", "FrobeniusProjection", "frobenius"),
    Case("frobenius-whitened", "FrobeniusProjection", "frobenius-whitened", {"whitened": True}),
    Case("joint", "JointKLProjection", "kl"),
    Case("joint-min-entropy", "JointKLProjection", "kl", entropy="min_entropy"),
    Case("joint-entropy", "JointKLProjection", "kl", entropy="entropy"),
]
SEPARATE = [case for case in CASES if not case.joint]
KINDS = ["diag", "full"]


def run(case: Case, framework, pair: Pair, dtype: str = "float64", *, check: bool = True, **bounds) -> Pair:
    """The projected policy in the place of the predicted one."""
    predicted, old = policies(framework, pair, dtype)
    options = case.call_options(framework, pair, dtype, **bounds)
    projected = framework.project(case.make(framework, check=check), predicted, old, **options)
    assert {framework.numpy(x).dtype.name for x in projected} == {dtype}
    return as_pair(framework, projected, pair)


def gradients(
    case: Case, framework, pair: Pair, dtype: str = "float64", *, seed: int = 0, weights: tuple | None = None, **bounds
) -> dict[str, np.ndarray]:
    """Gradients of a linear function of the projected policy, by name; factors' on their lower triangle.

    Its weights are random where none are given.
    """
    predicted, old = policies(framework, pair, dtype)
    options = case.call_options(framework, pair, dtype, **bounds)
    rng = np.random.default_rng(seed)
    weights = weights or tuple(rng.normal(size=x.shape) for x in (pair.mean, pair.scale))
    weights = tuple(framework.array(x, dtype) for x in weights)
    found = framework.pullback(case.make(framework), predicted, old, options, weights)
    named = dict(zip(("mean", "scale", "old_mean", "old_scale", *options), map(framework.numpy, found), strict=True))
    if pair.kind == "full":
        named.update({k: np.tril(named[k]) for k in ("scale", "old_scale")})
    return named


def by_name(name: str):
    """A framework by its name."""
    found = [framework for framework in FRAMEWORKS if framework.name == name]
    return found[0] if found else Torch()  # PyTorch is not installed, and this says so
