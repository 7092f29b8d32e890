"""The three distances between Gaussians, by parts (paper, section 3), on the arrays of an engine.

`p` is the new policy, `q` the old. Every covariance part is a sum of squares, or expanded about p = q, so that small
distances do not cancel.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from trpl.engines import mT
from trpl.gaussians.density import whiten
from trpl.gaussians.values import DiagGaussian, FullGaussian, Gaussian, Parts
from trpl.matrix_roots import symmetric_root

if TYPE_CHECKING:
    from trpl.engines import Engine
    from trpl.types import Matrix, PerState, Scale

Form = Literal["commuting", "exact"]


def mahalanobis(e: Engine, p: Gaussian, q: Gaussian) -> PerState:
    """Compute (μ_p − μ_q)ᵀ Σ_q⁻¹ (μ_p − μ_q)."""
    white = whiten(e, q, p.mean - q.mean)
    return e.vecdot(white, white)


def kl_parts(e: Engine, p: Gaussian, q: Gaussian) -> Parts:
    """Compute KL(p‖q) by parts (paper, section 3).

    mean = ½ (μ_p − μ_q)ᵀ Σ_q⁻¹ (μ_p − μ_q)
    cov  = ½ (tr Σ_q⁻¹Σ_p − d + log|Σ_q|/|Σ_p|)
    """
    return Parts(mean=0.5 * mahalanobis(e, p, q), cov=kl_cov(e, lower_only(e, p), lower_only(e, q)))


def lower_only(e: Engine, p: Gaussian) -> Gaussian:
    """Return the same Gaussian, without a gradient to entries above the diagonal of its factor."""
    return p if isinstance(p, DiagGaussian) else p.with_scale(p.chol * e.lower(p.chol))


def kl_cov(e: Engine, p: Gaussian, q: Gaussian) -> PerState:
    """Compute ½ (tr Σ_q⁻¹Σ_p − d + log|Σ_q|/|Σ_p|)."""
    return kl_of_scales(e, p.scale, q.scale, full=isinstance(p, FullGaussian))


def kl_of_scales(e: Engine, p: Scale, q: Scale, *, full: bool) -> PerState:
    """Compute `kl_cov`, with L_q⁻¹L_p = I + E as ½‖E‖² + Σ (e_ii − log(1 + e_ii))."""
    xp = e.xp
    if not full:
        excess = (p - q) / q
        return xp.sum(0.5 * excess * excess + (excess - e.log_ratio(p, q)), axis=-1)
    return kl_of_excess(e, e.solve_triangular(q, p - q, lower=True), p, q)


def kl_of_excess(e: Engine, excess: Matrix, p: Matrix, q: Matrix) -> PerState:
    """Compute `kl_of_scales` from E = L_q⁻¹L_p − I."""
    xp = e.xp
    logs = e.log_ratio(e.diagonal(p), e.diagonal(q))
    return 0.5 * e.matrix_dot(excess, excess) + xp.sum(e.diagonal(excess) - logs, axis=-1)


def wasserstein_parts(e: Engine, p: Gaussian, q: Gaussian, *, scaled: bool = True, form: Form = "commuting") -> Parts:
    """Compute the squared Wasserstein-2 distance by parts (paper, section 3); see `wasserstein_cov`.

    Scaled by Σ_q, as the projections use it, the mean part is the Mahalanobis distance; plain, it is |μ_p − μ_q|².
    """
    shift = p.mean - q.mean
    mean = mahalanobis(e, p, q) if scaled else e.vecdot(shift, shift)
    return Parts(mean=mean, cov=wasserstein_cov(e, p, q, scaled=scaled, form=form))


def wasserstein_cov(e: Engine, p: Gaussian, q: Gaussian, *, scaled: bool = True, form: Form = "commuting") -> PerState:
    """Compute the covariance part of the squared Wasserstein-2 distance.

    commuting, plain:   ‖Σ_p^½ − Σ_q^½‖²_F
    commuting, scaled:  ‖I − Σ_q^−½ Σ_p^½‖²_F = tr(I + Σ_q⁻¹Σ_p − 2 Σ_q^−½Σ_p^½)
    exact, plain:       tr(Σ_p + Σ_q − 2 (Σ_q^½ Σ_p Σ_q^½)^½) = min over rotations R of ‖L_p − L_q R‖²_F
    exact, scaled:      ‖I − M^½‖²_F with M = L_q⁻¹ Σ_p L_q⁻ᵀ, the distance of the whitened pair
    """
    check_form(form)
    p, q = lower_only(e, p), lower_only(e, q)
    if isinstance(p, DiagGaussian):
        change = p.std - q.scale
        change = change / q.scale if scaled else change
        return e.vecdot(change, change)
    if form == "exact" and not scaled:
        u, _, vt = e.svd(e.constant(mT(q.scale) @ p.scale))
        change = p.scale - q.scale @ (u @ vt)  # a minimum over rotations, so their own derivative drops out
    elif form == "exact":
        ratio = e.solve_triangular(q.scale, p.scale, lower=True)
        change = symmetric_root(ratio) - e.eye(ratio)
    else:
        root = symmetric_root(q.scale)
        change = symmetric_root(p.scale) - root
        change = e.xp.linalg.solve(root, change) if scaled else change
    return e.matrix_dot(change, change)


def check_form(form: str) -> None:
    """Refuse a Wasserstein form that does not exist."""
    if form not in ("commuting", "exact"):
        raise ValueError(f"form must be 'commuting' or 'exact', not {form!r}")


def frobenius_parts(e: Engine, p: Gaussian, q: Gaussian, *, whitened: bool = False) -> Parts:
    """Compute the Frobenius distance by parts (paper, section 3); the mean part is the Mahalanobis distance."""
    return Parts(mean=mahalanobis(e, p, q), cov=frobenius_cov(e, p, q, whitened=whitened))


def frobenius_cov(e: Engine, p: Gaussian, q: Gaussian, *, whitened: bool = False) -> PerState:
    """Compute ‖Σ_p − Σ_q‖²_F, or ‖L_q⁻¹(Σ_p − Σ_q)L_q⁻ᵀ‖²_F, which is independent of the actions' units."""
    p, q = lower_only(e, p), lower_only(e, q)
    full = isinstance(p, FullGaussian)
    difference = cov_difference(e, p.scale, q.scale, full=full, whitened=whitened)
    return e.matrix_dot(difference, difference) if full else e.vecdot(difference, difference)


def cov_difference(e: Engine, p: Scale, q: Scale, *, full: bool, whitened: bool) -> Scale:
    """Compute Σ_p − Σ_q, or the same whitened by q; from the difference D of the factors: DL_pᵀ + L_qDᵀ."""
    if not full:
        difference = (p - q) * (p + q)
        return difference / (q * q) if whitened else difference
    if whitened:
        excess = e.solve_triangular(q, p - q, lower=True)
        return excess + mT(excess) + excess @ mT(excess)
    change = p - q
    return change @ mT(p) + q @ mT(change)
