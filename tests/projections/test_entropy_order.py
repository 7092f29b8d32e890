"""Theorem 1 of the paper: what each projection does to the entropy."""

import numpy as np
import pytest

import reference
from cases import SEPARATE, run
from frameworks import Torch
from generators import gentle_pair, hard_pairs


@pytest.mark.parametrize("kind", ["diag", "full"])
@pytest.mark.parametrize("case", SEPARATE, ids=str)
def test_theorem_1(case, kind):
    """H(π̃) ≥ min(H(π), H(π_old)) for Frobenius and Wasserstein, H(π̃) ≤ max(H(π), H(π_old)) for the KL; 10,000 pairs."""
    groups = [hard_pairs(kind, 1500, dim, seed=30) for dim in (1, 2, 3, 5, 8)]
    pairs = [(hard.pair, hard.cov_bound) for hard in groups] + [
        (gentle_pair(kind, 1000, dim, seed=31), np.geomspace(1e-4, 3.0, 1000)) for dim in (2, 4, 7)
    ]
    assert sum(len(bounds) for _, bounds in pairs) >= 10_000
    strict = 0
    for pair, bounds in pairs:
        projected = run(case, Torch(), pair, cov_bound=bounds)
        new, old, result = (reference.entropy(kind, s) for s in (pair.scale, pair.old_scale, projected.scale))
        slack = 1e-9 * (1.0 + np.abs(new) + np.abs(old))
        if case.name == "kl":
            assert (result <= np.maximum(new, old) + slack).all()
        else:
            assert (result >= np.minimum(new, old) - slack).all()
        strict += int((np.abs(result - new) > 1e-6).sum())
    assert strict > 3000  # most of them did move


def test_figure_1_goes_both_ways():
    """Old diag(5, 0.5), prediction the same turned by 90°: equal entropies, so between them it rises for Frobenius and
    Wasserstein and falls for the KL."""
    pair = gentle_pair("diag", 1, 2)._replace(scale=np.sqrt([[0.5, 5.0]]), old_scale=np.sqrt([[5.0, 0.5]]))
    start = reference.entropy("diag", pair.old_scale)
    for case in SEPARATE:
        change = (reference.entropy("diag", run(case, Torch(), pair, cov_bound=0.5).scale) - start).item()
        assert change < -1e-3 if case.name == "kl" else change > 1e-3
