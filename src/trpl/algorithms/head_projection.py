"""PAPI's projection of a mean head and a shared covariance onto a trust region on the KL expected over states.

The mean head is linear in the features. With the features fixed, the expected KL is therefore quadratic in the head,
and its coefficients are averages over states that are computed once.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from trpl.gaussians import DiagGaussian, FullGaussian, Gaussian, entropy, kl_cov, whiten
from trpl.projections.entropy import control_entropy

MAX_ROUNDS = 20
SLACK = 1e-5  # tolerance at which the rounds stop, well below the share `papi.ROUNDING` of the bound


class Candidate(NamedTuple):
    """The projection's variables: the mean head, bias in its last row, and the covariance (as a Gaussian's scale)."""

    head: Array
    shape: Gaussian[Array]


class Limits(NamedTuple):
    """The upper bound on the expected KL to q and the lower bound on the entropy."""

    kl: float | Array
    entropy: Array


class Region(NamedTuple):
    """The trust region around q for mean heads on the intermediate policy's features φ (1 appended), in q's units.

    With D = (A − A′)L_q⁻ᵀ, the mean part of the expected KL is m = m′ + ⟨D, cross⟩ + ½⟨D, gram·D⟩: inner products are
    taken per state and averaged over states, once, here.
    """

    old: Gaussian[Array]  # q
    head: Array  # A′
    gram: Array  # E[φφᵀ]
    cross: Array  # E[φ (L_q⁻¹(μ′ − μ_q))ᵀ]
    mean_part: Array  # m′ = ½ E‖L_q⁻¹(μ′ − μ_q)‖²

    @classmethod
    def of(cls, old: Gaussian[Array], head: Array, features: Array) -> "Region":
        """Average over states, given their features [n, k] with 1 appended; `head` is A′, [k, actions]."""
        shift = whiten(old, features @ head - old.mean)
        num_states = len(features)
        return cls(
            old=old,
            head=head,
            gram=features.T @ features / num_states,
            cross=features.T @ shift / num_states,
            mean_part=0.5 * jnp.square(shift).sum(-1).mean(),
        )


def project(candidate: Candidate, region: Region, limits: Limits) -> tuple[Candidate, Array]:
    """Repeat `project_once` until both limits hold, at most 20 times; return a feasible candidate bit for bit."""

    def violated(carry):
        candidate, num_rounds = carry
        outside = expected_kl(candidate, region) > limits.kl * (1.0 + SLACK)
        return (num_rounds < MAX_ROUNDS) & (outside | (entropy(candidate.shape) < limits.entropy - SLACK))

    def again(carry):
        candidate, num_rounds = carry
        return project_once(candidate, region, limits), num_rounds + 1

    return lax.while_loop(violated, again, (candidate, jnp.zeros((), jnp.int32)))


def expected_kl(candidate: Candidate, region: Region) -> Array:
    """Compute m + r + e: mean part, trace and determinant of KL(candidate‖q), expected over the rollout's states."""
    quadratic, linear = mean_terms(candidate.head, region)
    return region.mean_part + linear + quadratic + kl_cov(candidate.shape, region.old)


def project_once(candidate: Candidate, region: Region, limits: Limits) -> Candidate:
    """Do one differentiable round: raise the covariance to the entropy bound, pull it to q's, then the head to A′.

    With m + r + e > ε: Σ ← (1 − η)Σ_q + ηΣ, η = (ε − min(m, m′))/(m + r + e − min(m, m′)). r is linear in Σ and e
    convex, so r + e falls at least to ε − min(m, m′). Where that is not enough, A ← (1 − η)A′ + ηA with η the larger
    root of m(η) + r + e = ε; the head is linear in the mean, so this interpolates the means.
    """
    shape = control_entropy(candidate.shape, limits.entropy)
    quadratic, linear = mean_terms(candidate.head, region)
    mean_part = region.mean_part + linear + quadratic
    least = jnp.minimum(mean_part, region.mean_part)
    excess = mean_part + kl_cov(shape, region.old) - least
    outside = excess + least > limits.kl
    share = jnp.where(outside, jnp.maximum(limits.kl - least, 0.0) / jnp.where(outside, excess, 1.0), 1.0)
    pulled = interpolate_covariance(region.old, shape, share)
    shape = jax.tree.map(lambda moved, same: jnp.where(outside, moved, same), pulled, shape)

    cov_part = kl_cov(shape, region.old)
    outside = (mean_part + cov_part > limits.kl) & (quadratic > 0.0)
    root = larger_root(
        jnp.where(outside, quadratic, 1.0),
        jnp.where(outside, linear, 0.0),
        jnp.where(outside, region.mean_part + cov_part - limits.kl, -1.0),
    )
    return Candidate(region.head + jnp.where(outside, root, 1.0) * (candidate.head - region.head), shape)


def mean_terms(head: Array, region: Region) -> tuple[Array, Array]:
    """Compute ½⟨D, gram·D⟩ and ⟨D, cross⟩ of `Region`: the quadratic and linear terms of m along the step from A′."""
    way = whiten(region.old, head - region.head)
    return 0.5 * jnp.vdot(way, region.gram @ way), jnp.vdot(way, region.cross)


def larger_root(quadratic: Array, linear: Array, constant: Array) -> Array:
    """Find the root ≥ 0 of ax² + bx + c = 0 for a > 0 ≥ c, without cancellation."""
    constant = jnp.minimum(constant, 0.0)
    discriminant = jnp.square(linear) - 4.0 * quadratic * constant
    positive = discriminant > 0.0
    root = jnp.where(positive, jnp.sqrt(jnp.where(positive, discriminant, 1.0)), 0.0)
    rising = (linear > 0.0) & positive
    return jnp.where(rising, -2.0 * constant / jnp.where(rising, linear + root, 1.0), (root - linear) / (2 * quadratic))


def interpolate_covariance(old: Gaussian[Array], shape: Gaussian[Array], share: Array) -> Gaussian[Array]:
    """Give `shape` the covariance (1 − η)Σ_q + ηΣ."""
    if isinstance(old, DiagGaussian):
        return shape.with_scale(jnp.sqrt((1.0 - share) * jnp.square(old.std) + share * jnp.square(shape.scale)))
    assert isinstance(old, FullGaussian)
    mixed = (1.0 - share) * old.chol @ old.chol.T + share * shape.scale @ shape.scale.T
    return shape.with_scale(jnp.linalg.cholesky(mixed))
