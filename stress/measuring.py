"""Distances and entropies measured once more, in extended precision and without the package; and what rounding allows.

A stored result is an exact matter: its numbers, the old policy's and the bound are what they are, and so is the
distance. It is computed here from textbook formulas in `numpy.longdouble`, 2048 times finer than float64 where that is
the 80-bit type of x86. Where rounding of the result itself makes a bound unresolvable, `limits` says by how much.

The rounding limit
------------------
To first order, with u = eps/2 for one rounding:

*Mean.* μ̃ is stored with an error u|μ̃| in each entry, and the old mean is known to as much. The whitened shift
m = L_q⁻¹(μ̃ − μ_old) has the error |δm| ≤ 2u |L_q⁻¹||μ̃| and the distance ‖m‖² the error 2‖m‖‖δm‖ + ‖δm‖².

*Covariance.* W = L_q⁻¹L̃ is the projected factor as the old policy sees it. One rounding of L_q (an input) and one of
L̃ (the output) move it by |δW| ≤ R = 2u |L_q⁻¹||L_q||W|. With D the distance:

    KL                   δD ≤ Σ |W − diag(W)⁻¹| ∘ R + ½‖R‖²
    W2, exact            √D = ‖M^½ − I‖, M^½ a √2-Lipschitz function of W: δ√D ≤ √2 ‖R‖
    Frobenius, whitened  √D = ‖WWᵀ − I‖: δ√D ≤ 2 ‖R|W|ᵀ‖
    Frobenius, plain     √D = ‖L̃L̃ᵀ − L_qL_qᵀ‖: δ√D ≤ 2·2u ‖|L̃||L̃|ᵀ + |L_q||L_q|ᵀ‖
    W2, commuting        √D = ‖S_q⁻¹(S̃ − S_q)‖, roots √2-Lipschitz functions of factors:
                         δ√D ≤ √2·2u ‖L_q⁻¹‖(‖L̃‖ + ‖L_q‖)

and δD = 2√D δ√D + δ√D². Diagonal covariances are diagonal matrices throughout. No constant is added for the length of
sums or the steps of an algorithm.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from generators import Pair

Array = np.ndarray


class Measured(NamedTuple):
    """Mean part and covariance part of a distance."""

    mean: Array
    cov: Array


def solve_lower(lower: Array, right: Array) -> Array:
    """lower⁻¹right by forward substitution, in the precision of the arguments."""
    found = np.zeros(np.broadcast_shapes(lower.shape[:-2], right.shape[:-2]) + right.shape[-2:], dtype=right.dtype)
    for i in range(lower.shape[-1]):
        known = (lower[..., i, None, :i] @ found[..., :i, :])[..., 0, :] if i else 0.0
        found[..., i, :] = (right[..., i, :] - known) / lower[..., i, i, None]
    return found


def rotation_of(matrix: Array) -> Array:
    """R of the polar decomposition matrix = HR, H symmetric positive, in the precision of the argument.

    Singular vectors of float64 give it to float64's rounding. Each further round takes out what H = matrix Rᵀ lacks of
    symmetry, −HK − KH for R too far by the rotation I + K, and makes R orthogonal again.
    """
    u, s, vt = np.linalg.svd(matrix.astype(np.float64))
    rotation = (u @ vt).astype(matrix.dtype)
    if matrix.dtype == np.float64:
        return rotation
    u, pairs = u.astype(matrix.dtype), (s[..., :, None] + s[..., None, :]).astype(matrix.dtype)
    rotation = orthogonal(rotation)
    for _ in range(2):
        root = matrix @ rotation.mT
        turn = -(u @ ((u.mT @ (root - root.mT) @ u) / pairs) @ u.mT)
        rotation = orthogonal(rotation - turn @ rotation)
    return rotation


def orthogonal(nearly: Array) -> Array:
    """One Newton–Schulz step: the error of orthogonality squares."""
    return 0.5 * nearly @ (3.0 * np.eye(nearly.shape[-1], dtype=nearly.dtype) - nearly.mT @ nearly)


def squared(x: Array, axes: int) -> Array:
    return np.sum(x * x, axis=tuple(range(-axes, 0)))


def whitened(pair: Pair) -> tuple[Array, Array]:
    """L_q⁻¹(μ − μ_old), and W − I with W = L_q⁻¹L."""
    shift, change = pair.mean - pair.old_mean, pair.scale - pair.old_scale
    if pair.kind == "diag":
        return shift / pair.old_scale, change / pair.old_scale
    both = solve_lower(pair.old_scale, np.concatenate([shift[..., None], change], axis=-1))
    return both[..., 0], both[..., 1:]


def distances(metric: str, pair: Pair) -> Measured:
    """The distance of `pair`'s predicted policy from its old one, in the precision of its arrays."""
    shift, excess = whitened(pair)
    mean = (0.5 if metric == "kl" else 1.0) * squared(shift, 1)
    return Measured(mean, cov_distance(metric, pair, excess))


def cov_distance(metric: str, pair: Pair, excess: Array) -> Array:
    diag = pair.kind == "diag"
    new, old, axes = pair.scale, pair.old_scale, pair.core
    if metric == "kl":
        on_diagonal = excess if diag else np.diagonal(excess, axis1=-2, axis2=-1)
        return np.sum(on_diagonal - np.log1p(on_diagonal), axis=-1) + 0.5 * squared(excess, axes)
    if metric == "frobenius":
        change = new - old
        return squared(change * (new + old) if diag else change @ new.mT + old @ change.mT, axes)
    if metric == "frobenius-whitened":
        return squared(excess * (2.0 + excess) if diag else excess + excess.mT + excess @ excess.mT, axes)
    if diag:
        return squared(excess, 1)
    one = np.eye(pair.dim, dtype=new.dtype)
    if metric == "w2-exact":  # ‖W − R‖ is least at W's own rotation: what R lacks counts only in second order
        return squared(excess + (one - rotation_of(one + excess)), 2)
    assert metric == "w2"
    new_rotation, old_rotation = rotation_of(new), rotation_of(old)
    # S̃ − S_q = LRᵀ − L_qR_qᵀ, and S_q⁻¹ = R_qL_q⁻¹
    return squared(solve_lower(old, new) @ new_rotation.mT - old_rotation.mT, 2)


def entropy(pair: Pair) -> Array:
    diag = pair.scale if pair.kind == "diag" else np.diagonal(pair.scale, axis1=-2, axis2=-1)
    one = diag.dtype.type(1)
    return np.sum(np.log(diag), axis=-1) + 0.5 * pair.dim * (np.log(8 * np.arctan(one)) + one)


def extended(pair: Pair) -> Pair:
    return pair.astype(np.longdouble)


def limits(metric: str, pair: Pair, parts: Measured, *, eps: float) -> Measured:
    """What rounding alone can do to each part (see the module's words)."""
    pair = pair.astype(np.float64)
    new, old = abs(pair.scale), abs(pair.old_scale)
    if pair.kind == "diag":
        inverse, ratio = 1.0 / old, new / old
        shift_error = eps * inverse * abs(pair.mean)
        moved = eps * ratio
        steep = abs(ratio - 1.0 / ratio)
        times, axes = np.multiply, -1
    else:
        one = np.broadcast_to(np.eye(pair.dim), old.shape)
        inverse = abs(solve_lower(pair.old_scale, one))
        signed = solve_lower(pair.old_scale, pair.scale)
        ratio = abs(signed)
        shift_error = eps * (inverse @ abs(pair.mean)[..., None])[..., 0]
        moved = eps * inverse @ (old @ ratio)
        steep = abs(signed - one / np.where(one > 0, signed, 1.0))
        axes = (-2, -1)

        def times(a: Array, b: Array) -> Array:
            return a @ b.mT

    def norm(x: Array) -> Array:
        return np.sqrt(np.sum(x * x, axis=axes))

    mean, cov = (np.maximum(x.astype(np.float64), 0.0) for x in parts)
    half = 0.5 if metric == "kl" else 1.0
    size = np.linalg.norm(shift_error, axis=-1)
    mean_limit = half * (2.0 * np.sqrt(mean / half) * size + size * size)
    if metric == "kl":
        return Measured(mean_limit, np.sum(steep * moved, axis=axes) + 0.5 * norm(moved) ** 2)
    if metric == "w2-exact" or (metric == "w2" and pair.kind == "diag"):
        step = 2.0**0.5 * norm(moved)
    elif metric == "frobenius-whitened":
        step = 2.0 * norm(times(moved, ratio))
    elif metric == "frobenius":
        step = 2.0 * eps * norm(times(new, new) + times(old, old))
    else:
        step = 2.0**0.5 * eps * norm(inverse) * (norm(new) + norm(old))
    return Measured(mean_limit, 2.0 * np.sqrt(cov) * step + step * step)
