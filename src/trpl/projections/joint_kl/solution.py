"""The multiplier of the joint KL projection, and the policy there.

The dual, minimised over ω, is convex in η, and its derivative is ε − KL: so KL(x, k(x)) increases in x, and the
two-dimensional problem reduces to one bracketed root. If the prediction with the target entropy is inside the bound, it
is the answer and nothing is solved.

Eigenvalues only find the root; one Newton step on the KL of the returned factor removes their rounding.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from trpl.engines import mT
from trpl.gaussians.density import entropy as entropy_of
from trpl.gaussians.density import whiten
from trpl.gaussians.distances import kl_of_scales
from trpl.gaussians.values import FullGaussian, Gaussian
from trpl.implicit.problems import broadcast_shapes
from trpl.linalg import apply, chosen
from trpl.projections.joint_kl import newton
from trpl.projections.joint_kl.terms import DIAG, FINE, Method, Target, evaluator
from trpl.projections.kl.factor import LARGEST_VARIANCE, scale_ratio, widest_variance
from trpl.roots import increasing_root

if TYPE_CHECKING:
    from trpl.engines import Engine
    from trpl.types import Array, Mask, PerState, Scale, Vector

    _Answer: TypeAlias = tuple[Scale, Vector, PerState, PerState, Mask]  # factor, mean, log k, η, entropy held
    _Fields: TypeAlias = tuple[Vector, PerState, PerState, Mask, PerState, PerState]  # of a `_Problem`, after the first
    _AnswerAndRatio: TypeAlias = tuple[Scale, Vector, PerState, PerState, Mask, Scale]  # V besides


def entropy_range(e: Engine, bound: PerState, dim: int) -> tuple[PerState, PerState]:
    """Return the range of H − H_old over all Gaussians within KL ≤ ε of the old policy.

    The extremes scale the old covariance by c with (d/2)(c − 1 − log c) = ε; their entropies differ by (d/2) log c.
    """
    xp = e.xp
    share = 2.0 * bound / dim  # c − 1 − log c
    spread = xp.sqrt(2.0 * share)

    def newton(log_c: PerState) -> PerState:
        for _ in range(40):
            log_c = log_c - (xp.expm1(log_c) - log_c - share) / xp.expm1(log_c)
        return log_c

    return 0.5 * dim * newton(-spread - share), 0.5 * dim * newton(xp.log1p(spread + share))


class Found(NamedTuple):
    """The projected policy, its multipliers, and the pullback's residuals."""

    mean: Vector
    scale: Scale
    kl_multiplier: PerState
    entropy_multiplier: PerState
    shift: Vector
    """μ − μ_old, whitened by the old policy."""
    white_mean: Vector
    """μ̃ − μ_old, whitened by the old policy."""
    factor: Scale
    """L̃, whitened by the old policy."""
    share: PerState
    """Outside, the weight x/k of the predicted natural parameters; inside, √k."""
    state: PerState
    """2 where outside, 0 inside; plus 1 where the entropy is constrained."""
    ratio: Scale
    """V."""


class _Problem(NamedTuple):
    """The problem, in the common batch shape: V − I, the whitened shift, ε, the entropy, and a start.

    `narrowest` is a lower bound on the smallest eigenvalue of Λ, and at most 1.
    """

    change: Scale
    shift: Vector
    bound: PerState
    log_scale: PerState
    outside: Mask
    start: PerState
    narrowest: PerState

    def target(self, entropy: bool, equality: bool) -> Target:
        return Target(self.log_scale if entropy else None, equality)


def _root(e: Engine, problem: _Problem, target: Target, method: Method) -> tuple[PerState, PerState, PerState]:
    """Find the root t by eigenvalues; return it with its unit s and the slope of the KL there."""
    xp = e.xp
    spectrum = method.spectrum(e, problem.change, problem.shift)
    unit, start = spectrum.unit(e, target), problem.start
    if target.equality:
        spectrum, start = spectrum.rescaled(e, unit), unit / (unit + (1.0 / start - 1.0))
    evaluate = evaluator(e, spectrum, target)
    root = xp.clip(increasing_root(e, evaluate, problem.bound, start=start, active=problem.outside), None, 1.0)
    return root, unit, evaluate(root)[1] / root


def _answer(
    e: Engine, problem: _Problem, target: Target, method: Method, root: PerState, unit: PerState, slope: PerState
) -> _Answer:
    """Return factor, mean, log k, η and the entropy's mask, after a Newton step on the KL of the factor itself."""
    xp = e.xp
    change, shift, bound, _, outside, *_ = problem
    one = xp.ones_like(root)
    value = method.terms(e, root, unit, change, shift, target).kl
    moved = root - (value - bound) / xp.where(outside, slope, one)
    t = xp.where(outside, xp.where((moved > 0.0) & (moved <= 1.0), moved, root), one)
    found = method.correct(e, method.terms(e, t, unit, change, shift, target), bound)
    log_k = found.log_k + xp.log(unit / (t + unit * (1.0 - t))) if target.equality else found.log_k
    return found.factor, found.mean, log_k, unit * (1.0 - t) / t, found.held


def _by_newton(e: Engine, problem: _Problem, target: Target) -> tuple[_Answer, Mask]:
    """Return the same for well-conditioned full covariances, and the mask of ill-conditioned ones."""
    xp = e.xp
    bound, outside = problem.bound, problem.outside
    of = newton.pencil(e, problem.change, problem.shift)
    begin, unit = newton.start(e, of, bound, problem.start, target), xp.ones_like(bound)
    if target.equality:
        unit = xp.clip(problem.narrowest, float(xp.finfo(bound.dtype).smallest_normal) ** 0.5, None)
        of, begin = newton.rescaled(e, of, unit), unit / (unit + (1.0 / begin - 1.0))
    t, found, unfinished = newton.solve(e, of, bound, begin, outside, target)
    log_k = found.log_k + xp.log(unit / (t + unit * (1.0 - t))) if target.equality else found.log_k
    bad = outside & (unfinished | ~(newton.condition(e, t, of, found) <= newton.ILL_CONDITIONED * problem.narrowest))
    factor, mean = xp.flip(mT(found.inverse), axis=(-2, -1)), xp.flip(found.mean, axis=-1)
    return (factor, mean, log_k, unit * (1.0 - t) / t, found.held), bad


def _solve_outside(
    e: Engine, scale: Scale, old: Scale, *rest: *_Fields, entropy: bool, equality: bool
) -> _AnswerAndRatio:
    """Solve the problem with V − I from the scales and the `rest` of its fields; return the answer and V."""
    full = scale.ndim > rest[0].ndim
    method = FINE if full else DIAG

    def by_spectrum(change: Scale, *rest: *_Fields) -> _Answer:
        problem = _Problem(change, *rest)
        target = problem.target(entropy, equality)
        return _answer(e, problem, target, method, *_root(e, problem, target, method))

    problem = _Problem(method.change(e, scale, old), *rest)
    if not full:
        return *by_spectrum(*problem), problem.change
    found, bad = _by_newton(e, problem, problem.target(entropy, equality))
    found = e.recompute(bad, by_spectrum, found, *problem)
    wide = ~(LARGEST_VARIANCE * problem.narrowest >= 1.0)
    return *found, scale_ratio(e, problem.change, scale, old, wide)


def solve(
    e: Engine, p: Gaussian, q: Gaussian, bound: PerState, entropy: PerState | None, *, equality: bool, whole: bool
) -> Found | None:
    """Solve the projection; covariances become contextual even if shared before; None if nothing has to change."""
    xp = e.xp
    full = isinstance(p, FullGaussian)
    core, dim = 2 if full else 1, p.dim
    axes = (..., *(None,) * core)
    batch = broadcast_shapes(p.batch_shape, q.batch_shape, tuple(bound.shape))

    def spread(x: Array, num: int) -> Array:
        shape = (*batch, *x.shape[x.ndim - num :])
        return x if tuple(x.shape) == shape else xp.broadcast_to(x, shape)

    scale, old, limit = spread(p.scale, core), spread(q.scale, core), spread(bound, 0)
    lift = limit if entropy is None else spread((2.0 / dim) * (entropy - entropy_of(e, p)), 0)
    log_scale = limit if entropy is None else spread((2.0 / dim) * (entropy - entropy_of(e, q)), 0)
    log_k, held = Target(None if entropy is None else lift, equality).log_k(e, 0.0 * limit, dim)
    grown = xp.exp(0.5 * log_k)
    inside = scale if entropy is None else xp.where(held[axes], scale * grown[axes], scale)
    shift = spread(whiten(e, q, p.mean - q.mean), 1)
    cov_at_one = kl_of_scales(e, inside, old, full=full)
    at_one = cov_at_one + 0.5 * e.vecdot(shift, shift)
    outside = ~(at_one <= limit)  # non-finite distances count as outside
    same = p.batch_shape == batch and tuple(p.scale.shape) == tuple(scale.shape)
    if not whole and same and not e.any(outside | held):
        return None
    start = xp.clip(xp.sqrt(limit / xp.where(at_one > limit, at_one, 1e6 * limit)), 1e-3, 1.0)
    narrowest = xp.clip(xp.exp(log_k) / widest_variance(e, cov_at_one), None, 1.0)

    def work(scale: Scale, old: Scale, *rest: *_Fields) -> _AnswerAndRatio:
        return _solve_outside(e, scale, old, *rest, entropy=entropy is not None, equality=equality)

    def idle(scale: Scale, old: Scale, shift: Vector, limit: PerState, *_: PerState | Mask) -> _AnswerAndRatio:
        zero = 0.0 * limit
        return xp.zeros_like(scale), 0.0 * shift, zero, zero, zero != zero, xp.zeros_like(scale)

    found = e.branch(outside, work, idle, scale, old, shift, limit, log_scale, outside, start, narrowest)
    factor, white_mean, out_log_k, multiplier, out_held, ratio = found
    away = white_mean * old if not full else apply(old, white_mean)
    mean = chosen(e, outside[..., None], q.mean + away, p.mean)
    moved = e.lower_product(old, factor) if full else old * factor
    multiplier = xp.where(outside, multiplier, 0.0 * limit)
    log_k, held = xp.where(outside, out_log_k, log_k), xp.where(outside, out_held, held)
    share = xp.where(outside, xp.exp(-log_k) / (1.0 + multiplier), grown)
    number = xp.where(outside, 2.0 + 0.0 * limit, 0.0 * limit) + xp.where(held, 1.0 + 0.0 * limit, 0.0 * limit)
    return Found(
        mean,
        chosen(e, outside[axes], moved, inside),
        multiplier,
        xp.expm1(log_k) * (1.0 + multiplier),
        shift,
        white_mean,
        factor,
        share,
        number,
        ratio,
    )
