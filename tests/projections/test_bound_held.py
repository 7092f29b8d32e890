"""The bound holds on hard pairs: dimensions to 32, condition numbers to 1e10, variances from 1e-8 to 1e4, bounds from
1e-6 to 10.

100,000 pairs for each projection and each structure (10,000 in `make test`), in float64, with their gradients. The
distance of the result from its bound may be 1e-8 of it, or the rounding limit where that is larger.

The rounding limit
------------------
A result can be no nearer to its bound than its own floating-point numbers allow. To first order, with u = eps/2 for
one rounding:

*Mean.* μ̃ is stored with an error u|μ̃| in each entry, and is the sum of μ_old and a step, each known to as much. The
whitened shift m = L_q⁻¹(μ̃ − μ_old) then has the error |δm| ≤ 2u |L_q⁻¹||μ̃|, and the distance ‖m‖² the relative
error 2‖δm‖/‖m‖. It matters where the mean is large against the standard deviation.

*Covariance.* W = L_q⁻¹L̃ is the projected factor as the old policy sees it. One rounding of L_q (an input) and one of
L̃ = L_qW (the output) move it by |δW| ≤ R = 2u |L_q⁻¹||L_q||W|. With D the distance and ∇D its gradient:

    KL                   δD ≤ Σ |W − diag(W)⁻¹| ∘ R
    W2, exact            D = ‖M^½ − I‖², M^½ a √2-Lipschitz function of W: δD/D ≤ 2√2 ‖R‖/√D
    Frobenius, whitened  D = ‖WWᵀ − I‖²: δD/D ≤ 4 ‖R‖‖W‖/√D
    Frobenius, plain     D = ‖L̃L̃ᵀ − L_qL_qᵀ‖²: δD/D ≤ 4·2u ‖|L̃||L̃|ᵀ + |L_q||L_q|ᵀ‖/√D
    W2, commuting        D = ‖S_q⁻¹(S̃ − S_q)‖², roots √2-Lipschitz functions of factors:
                         δD/D ≤ 2√2·2u ‖L_q⁻¹‖(‖L̃‖ + ‖L_q‖)/√D

*Joint projection.* Its multiplier η is carried by x = 1/(1 + η), which resolves it to eps: where η is below 1e-8 (a
prediction 1e4 times as wide as the old policy and an entropy that forbids it), the relative error 2·eps/η of what is
nearly a power of η is allowed. This is a limit of the parametrisation, not of the inputs.

For diagonal covariances all of it holds with diagonal matrices. Nothing is added for the length of sums or the steps
of an algorithm: 1e-8 leaves room for those where the numbers themselves do not take it up.
"""

from functools import cache

import numpy as np
import pytest
import torch

from cases import CASES, KINDS, Case, entropy_room
from frameworks import TYPES, Torch, policies
from generators import DIMENSIONS, HardPairs, hard_pairs
from trpl import DiagGaussian, entropy, frobenius_parts, kl_parts, wasserstein_parts

EPS = {"float64": 2.0**-52, "float32": 2.0**-23}
NUM_PAIRS = 100_000
torch_framework = Torch()


@cache
def pairs(kind: str, dim: int, num: int = NUM_PAIRS) -> HardPairs:
    return hard_pairs(kind, round(num * DIMENSIONS[dim]), dim, seed=20)


def measured(metric: str, p, q):
    """The package's own distances, which have their own tests."""
    if metric == "kl":
        return kl_parts(p, q)
    if metric.startswith("w2"):
        return wasserstein_parts(p, q, form="exact" if metric == "w2-exact" else "commuting")
    return frobenius_parts(p, q, whitened=metric == "frobenius-whitened")


def norm(x: torch.Tensor) -> torch.Tensor:
    return torch.linalg.matrix_norm(x)


def rounding_limits(metric: str, p, q, parts, eps: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Absolute errors of the mean and the covariance part that rounding allows (see the module's words)."""
    if isinstance(p, DiagGaussian):
        inverse, old, new = 1.0 / q.std, q.std, p.std
        ratio = new / old
        spread = eps * ratio
        shift_error = inverse * p.mean.abs()
        gradient = (ratio - 1.0 / ratio).abs()
        product, size = torch.mul, torch.linalg.vector_norm

        def total(x):
            return size(x, dim=-1)
    else:
        old, new = q.chol.abs(), p.chol.abs()
        inverse = torch.linalg.solve_triangular(
            q.chol, torch.eye(q.dim, dtype=q.chol.dtype).expand_as(q.chol), upper=False
        ).abs()
        ratio = torch.linalg.solve_triangular(q.chol, p.chol, upper=False)
        spread = eps * inverse @ (old @ ratio.abs())
        shift_error = (inverse @ p.mean.abs()[..., None])[..., 0]
        gradient = (ratio - torch.diag_embed(1.0 / torch.diagonal(ratio, dim1=-2, dim2=-1))).abs()
        total = norm

        def product(a, b):
            return a @ b.mT

    root = parts.cov.clamp_min(0).sqrt()
    if metric == "kl":
        axes = tuple(range(1, gradient.ndim))
        cov = (gradient * spread).sum(axes)
    elif metric == "w2-exact":
        cov = 2.0 * 2.0**0.5 * total(spread) * root
    elif metric == "frobenius-whitened":
        cov = 4.0 * total(spread) * total(ratio) * root
    elif metric == "frobenius":
        cov = 4.0 * eps * total(product(new, new) + product(old, old)) * root
    else:
        cov = 2.0 * 2.0**0.5 * eps * total(inverse) * (total(new) + total(old)) * root
    mean = 2.0 * eps * torch.linalg.vector_norm(shift_error, dim=-1) * parts.mean.sqrt()
    return mean, cov


def check_bound(case: Case, kind: str, dim: int, num: int) -> None:
    hard = pairs(kind, dim, num)
    predicted, old = policies(torch_framework, hard.pair)
    bounds = torch.as_tensor(np.stack([hard.mean_bound, hard.cov_bound]))
    options = {"bound": bounds[1]} if case.joint else {"mean_bound": bounds[0], "cov_bound": bounds[1]}
    if case.entropy is not None:
        offset = np.random.default_rng(dim).uniform(-0.9, 0.9, size=hard.cov_bound.shape)
        room = torch.as_tensor(entropy_room(hard.cov_bound, dim) * offset)
        options[case.entropy] = entropy(old) + torch.where(
            room < 0, room.clamp_min(-0.3 * options["bound"].sqrt()), room
        )
    leaves = [x.clone().requires_grad_() for x in (*predicted, *old, *options.values())]
    make = TYPES[kind]
    named = dict(zip(options, leaves[4:], strict=True))
    projected = case.make(torch_framework)(make(*leaves[:2]), make(*leaves[2:4]), **named)
    found = torch.autograd.grad(projected.mean.sum() + projected.scale.sum(), leaves)
    assert all(bool(torch.isfinite(g).all()) for g in found), "a gradient is not finite"

    with torch.no_grad():
        result = make(*(x.detach() for x in projected))
        assert bool(torch.isfinite(result.mean).all() & torch.isfinite(result.scale).all())
        before, after = measured(case.metric, predicted, old), measured(case.metric, result, old)
        mean_limit, cov_limit = rounding_limits(case.metric, result, old, after, EPS["float64"])
        kept, kept_scale = ((x == y).flatten(1).all(-1) for x, y in zip(result, predicted, strict=True))
        if case.joint:
            multiplier = case.make(torch_framework).audit(predicted, result, old, **options).mean_multiplier
            assert bool((multiplier >= 0.0).all()), "a negative multiplier"
            coarse = torch.where(multiplier > 0.0, 2.0 * EPS["float64"] / multiplier * options["bound"], 0.0)
            limit = mean_limit + cov_limit + coarse
            total = before.mean + before.cov, after.mean + after.cov
            checks = [(*total, options["bound"], limit, kept & kept_scale)]
        else:
            checks = [
                (before.mean, after.mean, bounds[0], mean_limit, kept),
                (before.cov, after.cov, bounds[1], cov_limit, kept_scale),
            ]
        for start, distance, bound, limit, unmoved in checks:
            allowed = torch.maximum(1e-8 * bound, limit)
            assert bool((distance <= bound + allowed).all()), "outside of the bound"
            if case.entropy is None:  # else the entropy alone may hold it inside
                assert bool(((distance - bound).abs() <= allowed)[start > bound + allowed].all()), "short of the bound"
                assert bool(unmoved[start <= bound - allowed].all()), "moved although inside"
        if case.entropy is not None:
            have, want = entropy(result), options[case.entropy]
            slack = 1e-9 + 64 * EPS["float64"] * (want.abs() + have.abs())
            assert bool((have >= want - slack).all())
            if case.entropy == "entropy":
                assert bool(((have - want).abs() <= slack).all())


@pytest.mark.parametrize("num", [NUM_PAIRS // 10, pytest.param(NUM_PAIRS, marks=pytest.mark.stress)])
@pytest.mark.parametrize("dim", DIMENSIONS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_bound_held_float64(case, kind, dim, num):
    check_bound(case, kind, dim, num)


def test_enough_hard_pairs_are_outside_and_hard():
    """The pairs are what they are said to be."""
    dims = {dim: pairs("full", dim) for dim in (2, 8)}
    assert sum(round(NUM_PAIRS * share) for share in DIMENSIONS.values()) >= NUM_PAIRS
    for hard in dims.values():
        factors = np.concatenate([hard.pair.scale, hard.pair.old_scale])
        values = np.linalg.svd(factors, compute_uv=False) ** 2
        assert values.min() < 2e-8
        assert values.max() > 5e3
        assert (values[:, 0] / values[:, -1]).max() > 3e9
        predicted, old = policies(torch_framework, hard.pair)
        share = (kl_parts(predicted, old).cov.numpy() > hard.cov_bound).mean()
        assert 0.4 < share < 0.98


@pytest.mark.parametrize("dim", [1, 2, 5, 17])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", [c for c in CASES if c.entropy is None], ids=str)
def test_bound_held_float32(case, kind, dim):
    """d ≤ 17, condition ≤ 1e3, ε ≥ 5e-5: within a hundredth (or the rounding limit: the plain
    Frobenius bound is absolute, and covariances of 1e4 have steps of 1e-3), measured in float64. Means are about as
    large as standard deviations.
    """
    hard = hard_pairs(kind, 2000, dim, seed=21, condition=1e3, smallest_bound=5e-5)
    pair = hard.pair
    shift = np.clip(pair.mean - pair.old_mean, -1e6, 1e6)
    near = np.random.default_rng(3).normal(size=pair.mean.shape)
    near = pair.old_scale * near if kind == "diag" else (pair.old_scale @ near[..., None])[..., 0]
    pair = pair._replace(old_mean=near, mean=near + shift).astype(np.float32)
    predicted, old = policies(torch_framework, pair, "float32")
    exact_predicted, exact_old = policies(torch_framework, pair, "float64")
    bounds = torch.as_tensor(np.stack([hard.mean_bound, hard.cov_bound]), dtype=torch.float32)
    options = {"bound": bounds[1]} if case.joint else {"mean_bound": bounds[0], "cov_bound": bounds[1]}
    leaves = [x.clone().requires_grad_() for x in (*predicted, *old)]
    make = TYPES[kind]
    projected = case.make(torch_framework)(make(*leaves[:2]), make(*leaves[2:]), **options)
    found = torch.autograd.grad(projected.mean.sum() + projected.scale.sum(), leaves)
    assert all(bool(torch.isfinite(g).all()) for g in found)
    result = make(*(x.detach().double() for x in projected))
    before, after = measured(case.metric, exact_predicted, exact_old), measured(case.metric, result, exact_old)
    mean_limit, cov_limit = rounding_limits(case.metric, result, exact_old, after, EPS["float32"])
    if case.joint:
        checks = [(before.mean + before.cov, after.mean + after.cov, bounds[1], mean_limit + cov_limit)]
    else:
        checks = [(before.mean, after.mean, bounds[0], mean_limit), (before.cov, after.cov, bounds[1], cov_limit)]
    for start, distance, bound, limit in checks:
        allowed = torch.maximum(0.01 * bound, limit)
        outside = start > bound + allowed
        assert bool(((distance - bound).abs() <= allowed)[outside].all())
