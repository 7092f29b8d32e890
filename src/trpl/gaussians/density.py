"""Entropy, log-density and whitening of Gaussians."""

from __future__ import annotations

import math
from typing import Any

from trpl.backend import namespace
from trpl.gaussians.values import DiagGaussian, Gaussian
from trpl.linalg import diagonal, solve_vector, squared_norm

Array = Any


def half_log_det(p: Gaussian) -> Array:
    """½ log|Σ|, one for each covariance."""
    xp = namespace(p.scale)
    diag = p.std if isinstance(p, DiagGaussian) else diagonal(p.scale)
    return xp.sum(xp.log(diag), axis=-1)


def entropy(p: Gaussian) -> Array:
    """H(p) = ½ log|2πe Σ|, one for each covariance (a single number when the batch shares it)."""
    return half_log_det(p) + 0.5 * p.dim * math.log(2.0 * math.pi * math.e)


def whiten(q: Gaussian, v: Array) -> Array:
    """L⁻¹v with Σ_q = LLᵀ: the vector as q sees it."""
    return v / q.std if isinstance(q, DiagGaussian) else solve_vector(q.scale, v)


def log_prob(p: Gaussian, x: Array) -> Array:
    """log N(x | μ, Σ) = −½‖L⁻¹(x − μ)‖² − ½ log|Σ| − (d/2) log 2π."""
    return -0.5 * squared_norm(whiten(p, x - p.mean)) - half_log_det(p) - 0.5 * p.dim * math.log(2.0 * math.pi)
