"""Joint KL projection: mean, covariance and entropy at once (paper, appendix "KL-Divergence Projection").

    min KL(π̃‖π)  subject to  KL(π̃‖π_old) ≤ ε  and  H(π̃) ≥ β (or = β).

Whitened by the old policy, with V = L_p⁻¹L_q, Λ = VᵀV the predicted precision and m the mean's shift, the dual's
solution is

    Q = yI + xΛ,    covariance k Q⁻¹,    mean m̃ = x Q⁻¹Λm,

where x = 1/(1 + η), y = 1 − x and k = 1 + ω/(1 + η) stand for the multipliers of the KL and of the entropy. For given
x the entropy fixes k:

    log k = (2/d)(β − H_old) + (1/d) log|Q|,  at least 0 for the inequality.

The dual, minimised over ω, is convex in η, and its derivative is ε − KL: so KL(x, k(x)) increases in x, and the
two-dimensional problem is one bracketed root. Where the prediction with the entropy asked for is inside the bound, it
is the answer and nothing is solved.

Eigenvalues only find the root; the gradient comes from one Newton step in which x alone is held constant, on the KL of
the factor that is returned. `joint_terms` has the pieces, and finer ones for pairs whose Q is ill-conditioned; compiled
code, which cannot look, always takes those.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from trpl.backend import any_true, has_values, namespace, stop_gradient
from trpl.gaussians.density import entropy as entropy_of
from trpl.gaussians.density import whiten
from trpl.gaussians.distances import kl_cov, lowered
from trpl.gaussians.values import DiagGaussian, Gaussian
from trpl.linalg import squared_norm
from trpl.projections.alignment import broadcast
from trpl.projections.joint_terms import DIAG, FINE, FULL, Method, Target, condition, evaluator
from trpl.roots import increasing_root
from trpl.rules import first_order

Array = Any

ILL_CONDITIONED = 1e4  # condition of Q, or how much wider than the old policy, from which finer pieces are taken


class Solution(NamedTuple):
    """The projected policy and the multipliers of the KL and the entropy constraint."""

    projected: Gaussian
    kl_multiplier: Array
    entropy_multiplier: Array


def entropy_range(bound: Array, dim: int) -> tuple[Array, Array]:
    """The least and the greatest entropy, less that of the old policy, that any Gaussian within KL ≤ ε of it can have.

    The extremes scale the old covariance by c with (d/2)(c − 1 − log c) = ε; their entropies are (d/2) log c away.
    """
    xp = namespace(bound)
    share = 2.0 * bound / dim  # c − 1 − log c
    spread = xp.sqrt(2.0 * share)

    def newton(log_c: Array) -> Array:
        for _ in range(40):
            log_c = log_c - (xp.expm1(log_c) - log_c - share) / xp.expm1(log_c)
        return log_c

    return 0.5 * dim * newton(-spread - share), 0.5 * dim * newton(xp.log1p(spread + share))


class _Problem(NamedTuple):
    """What is to be solved, in the common batch shape: V − I, the whitened shift, ε, the entropy, who is outside."""

    change: Array
    shift: Array
    bound: Array
    target: Target
    outside: Array
    start: Array


class _Found(NamedTuple):
    """The answer as the old policy sees it."""

    factor: Array
    mean: Array
    log_k: Array
    multiplier: Array


def _root(problem: _Problem, method: Method) -> tuple[Array, Array, Array, Array]:
    """The root t by eigenvalues, its unit s, the slope of the KL there and how hard it is; never differentiated."""
    xp = namespace(problem.bound)
    spectrum = method.spectrum(stop_gradient(problem.change), stop_gradient(problem.shift))
    unit, start = spectrum.unit(problem.target), problem.start
    widest = xp.clip(xp.min(spectrum.precision, axis=-1), None, 1.0)
    if problem.target.equality:
        spectrum, start = spectrum.rescaled(unit), unit / (unit + (1.0 / start - 1.0))
    evaluate = evaluator(spectrum, problem.target.frozen())
    root = increasing_root(evaluate, stop_gradient(problem.bound), start=start, active=problem.outside)
    root = xp.clip(root, None, 1.0)
    return root, unit, evaluate(root)[1] / root, condition(root, spectrum) / widest


def _answer(problem: _Problem, method: Method, root: Array, unit: Array, slope: Array) -> _Found:
    """One Newton step on the returned factor's own KL: polishes the value and carries the derivative of the root."""
    xp = namespace(root)
    change, shift, bound, target, outside, _ = problem
    one = xp.ones_like(root)
    value = method.terms(root, unit, change, shift, target).kl
    moved = first_order(root - (value - bound) / xp.where(outside, slope, one))
    t = xp.where(outside, xp.where((moved > 0.0) & (moved <= 1.0), moved, root), one)
    found = method.settle(method.terms(t, unit, change, shift, target), stop_gradient(bound))
    multiplier = unit * (1.0 - t) / t
    log_k = found.log_k + xp.log(unit / (t + unit * (1.0 - t))) if target.equality else found.log_k
    return _Found(found.factor, found.mean, log_k, multiplier)


def project(
    predicted: Gaussian, old: Gaussian, *, bound: Array, entropy: Array | None = None, equality: bool = False
) -> Solution:
    """The joint projection; covariances are per state afterwards, also where they were shared before."""
    xp = namespace(predicted.mean)
    diag = isinstance(predicted, DiagGaussian)
    core = 1 if diag else 2
    method = DIAG if diag else FULL if has_values(predicted.mean, predicted.scale, old.mean, old.scale) else FINE
    predicted, old = lowered(predicted), lowered(old)
    shift = whiten(old, predicted.mean - old.mean)
    log_scale, lift = (
        (bound, bound)
        if entropy is None
        else ((2.0 / old.dim) * (entropy - entropy_of(old)), (2.0 / old.dim) * (entropy - entropy_of(predicted)))
    )
    change, p, q, shift, bound, log_scale, lift = broadcast(
        (method.change(predicted.scale, old.scale), core),
        *((x.scale, core) for x in (predicted, old)),
        (shift, 1),
        *((x, 0) for x in (bound, log_scale, lift)),
    )
    limit = stop_gradient(bound)
    axes = (..., *(None,) * core)

    log_k, held = Target(None if entropy is None else lift, equality).log_k(0.0 * limit, old.dim)
    inside = xp.where(held[axes], p * xp.exp(0.5 * log_k)[axes], p)
    at_one = stop_gradient(kl_cov(predicted.with_scale(inside), old.with_scale(q)) + 0.5 * squared_norm(shift))
    outside = ~(at_one <= limit)  # so far outside that even the distance is not finite is outside too
    start = xp.clip(xp.sqrt(limit / xp.where(at_one > limit, at_one, 1e6 * limit)), 1e-3, 1.0)
    target = Target(None if entropy is None else log_scale, equality)
    problem = _Problem(change, shift, bound, target, outside, start)

    root, unit, slope, cond = _root(problem, method)
    if method is FULL and any_true(outside & ~(cond <= ILL_CONDITIONED)):
        method = FINE
        root, unit, slope, _ = _root(problem, method)
    found = _answer(problem, method, root, unit, slope)

    mean = xp.where(outside[..., None], old.mean + method.unwhiten(q, found.mean), predicted.mean)
    factor = q * found.factor if diag else q @ found.factor
    projected = predicted.with_scale(xp.where(outside[axes], factor, inside))._replace(mean=mean)
    multiplier = xp.where(outside, found.multiplier, 0.0 * limit)
    log_k = xp.where(outside, found.log_k, log_k)
    return Solution(projected, multiplier, xp.expm1(log_k) * (1.0 + multiplier))
