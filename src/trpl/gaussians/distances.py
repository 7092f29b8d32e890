"""The three distances between Gaussians, by parts (paper, section 3).

`p` is the newer policy, `q` the older. Every covariance part is a sum of squares, or written about p = q, so that small
distances keep their digits.
"""

from __future__ import annotations

from typing import Any, Literal

from trpl.backend import namespace, solve_triangular, stop_gradient
from trpl.gaussians.density import whiten
from trpl.gaussians.values import DiagGaussian, FullGaussian, Gaussian, Parts
from trpl.linalg import (
    diagonal,
    identity_like,
    log_ratio,
    lower_mask,
    squared_frobenius,
    squared_norm,
    symmetric_root,
)

Array = Any
Form = Literal["commuting", "exact"]


def mahalanobis(p: Gaussian, q: Gaussian) -> Array:
    """(μ_p − μ_q)ᵀ Σ_q⁻¹ (μ_p − μ_q)."""
    return squared_norm(whiten(q, p.mean - q.mean))


def kl_parts(p: Gaussian, q: Gaussian) -> Parts:
    """KL(p‖q) by parts (paper, section 3).

    mean = ½ (μ_p − μ_q)ᵀ Σ_q⁻¹ (μ_p − μ_q)
    cov  = ½ (tr Σ_q⁻¹Σ_p − d + log|Σ_q|/|Σ_p|)
    """
    return Parts(mean=0.5 * mahalanobis(p, q), cov=kl_cov(lowered(p), lowered(q)))


def lowered(p: Gaussian) -> Gaussian:
    """The same Gaussian, with no gradient to what stands above the diagonal of its factor."""
    return p if isinstance(p, DiagGaussian) else p.with_scale(p.chol * lower_mask(p.chol))


def kl_cov(p: Gaussian, q: Gaussian) -> Array:
    """½ (tr Σ_q⁻¹Σ_p − d + log|Σ_q|/|Σ_p|), written with L_q⁻¹L_p = I + E as ½‖E‖² + Σ (e_ii − log(1 + e_ii))."""
    xp = namespace(p.scale)
    if isinstance(p, DiagGaussian) and isinstance(q, DiagGaussian):
        excess = (p.std - q.std) / q.std
        return xp.sum(0.5 * excess * excess + (excess - log_ratio(p.std, q.std)), axis=-1)
    excess = solve_triangular(q.scale, p.scale - q.scale)
    logs = log_ratio(diagonal(p.scale), diagonal(q.scale))
    return 0.5 * squared_frobenius(excess) + xp.sum(diagonal(excess) - logs, axis=-1)


def wasserstein_parts(p: Gaussian, q: Gaussian, *, scaled: bool = True, form: Form = "commuting") -> Parts:
    """The squared Wasserstein-2 distance by parts (paper, section 3).

    Scaled by Σ_q, as the projections use it, the mean part is the Mahalanobis distance; plain, it is |μ_p − μ_q|². For
    the covariance part see `wasserstein_cov`.
    """
    mean = mahalanobis(p, q) if scaled else squared_norm(p.mean - q.mean)
    return Parts(mean=mean, cov=wasserstein_cov(p, q, scaled=scaled, form=form))


def wasserstein_cov(p: Gaussian, q: Gaussian, *, scaled: bool = True, form: Form = "commuting") -> Array:
    """Covariance part of the squared Wasserstein-2 distance.

    commuting, plain:   ‖Σ_p^½ − Σ_q^½‖²_F
    commuting, scaled:  ‖I − Σ_q^−½ Σ_p^½‖²_F = tr(I + Σ_q⁻¹Σ_p − 2 Σ_q^−½Σ_p^½)
    exact, plain:       tr(Σ_p + Σ_q − 2 (Σ_q^½ Σ_p Σ_q^½)^½) = min over rotations R of ‖L_p − L_q R‖²_F
    exact, scaled:      ‖I − M^½‖²_F with M = L_q⁻¹ Σ_p L_q⁻ᵀ, the distance of the whitened pair
    """
    check_form(form)
    if form == "exact" and not scaled and isinstance(p, FullGaussian):
        p, q = lowered(p), lowered(q)
        u, _, vt = namespace(p.scale).linalg.svd(stop_gradient(q.scale.mT @ p.scale), full_matrices=False)
        rotation = u @ vt  # a minimum, so its own derivative drops out
        return squared_frobenius(p.scale - q.scale @ rotation)
    root, change = root_change(p, q, form=form)
    if not scaled:
        return difference_norm(change, p)
    return root_distance(root, change, p, form=form)


def root_change(p: Gaussian, q: Gaussian, *, form: Form) -> tuple[Array, Array]:
    """The square root of q's covariance, and how far p's is from it; in the exact form both as q sees them."""
    p, q = lowered(p), lowered(q)
    if isinstance(p, DiagGaussian):
        return q.scale, p.std - q.scale
    if form == "commuting":
        root = symmetric_root(q.scale)
        return root, symmetric_root(p.scale) - root
    ratio = solve_triangular(q.scale, p.scale)
    root = identity_like(ratio)
    return root, symmetric_root(ratio) - root


def root_distance(root: Array, change: Array, like: Gaussian, *, form: Form) -> Array:
    """The scaled distance from what `root_change` gives: ‖S_q⁻¹(S_p − S_q)‖², where S_q = I in the exact form."""
    if isinstance(like, DiagGaussian):
        return squared_norm(change / root)
    return squared_frobenius(namespace(change).linalg.solve(root, change) if form == "commuting" else change)


def check_form(form: str) -> None:
    """Refuse a Wasserstein form that does not exist."""
    if form not in ("commuting", "exact"):
        raise ValueError(f"form must be 'commuting' or 'exact', not {form!r}")


def frobenius_parts(p: Gaussian, q: Gaussian, *, whitened: bool = False) -> Parts:
    """The Frobenius distance by parts (paper, section 3); the mean part is the Mahalanobis distance."""
    return Parts(mean=mahalanobis(p, q), cov=frobenius_cov(p, q, whitened=whitened))


def frobenius_cov(p: Gaussian, q: Gaussian, *, whitened: bool = False) -> Array:
    """‖Σ_p − Σ_q‖²_F, or ‖L_q⁻¹(Σ_p − Σ_q)L_q⁻ᵀ‖²_F: as seen from q, which does not change with the actions' units."""
    return difference_norm(cov_difference(p, q, whitened=whitened), p)


def cov_difference(p: Gaussian, q: Gaussian, *, whitened: bool) -> Array:
    """Σ_p − Σ_q, or the same as q sees it; from the difference D of the factors: DL_pᵀ + L_qDᵀ."""
    p, q = lowered(p), lowered(q)
    if isinstance(p, DiagGaussian) and isinstance(q, DiagGaussian):
        difference = (p.std - q.std) * (p.std + q.std)
        return difference / (q.std * q.std) if whitened else difference
    if whitened:
        excess = solve_triangular(q.scale, p.scale - q.scale)
        return excess + excess.mT + excess @ excess.mT
    change = p.scale - q.scale
    return change @ p.scale.mT + q.scale @ change.mT


def difference_norm(difference: Array, like: Gaussian) -> Array:
    """The squared norm of a difference of covariances, diagonal or full."""
    return squared_norm(difference) if isinstance(like, DiagGaussian) else squared_frobenius(difference)
