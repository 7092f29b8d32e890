"""Entropy, log-density and whitening of Gaussians, on the arrays of an engine."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from trpl.gaussians.values import DiagGaussian, Gaussian
from trpl.linalg import solve_vector

if TYPE_CHECKING:
    from trpl.engines import Engine
    from trpl.types import PerState, Vector


def half_log_det(e: Engine, p: Gaussian) -> PerState:
    """Compute ½ log|Σ|, one per covariance."""
    diag = p.std if isinstance(p, DiagGaussian) else e.diagonal(p.chol)
    return e.xp.sum(e.xp.log(diag), axis=-1)


def entropy(e: Engine, p: Gaussian) -> PerState:
    """Compute H(p) = ½ log|2πe Σ|, one per covariance (a single number if the batch shares it)."""
    return half_log_det(e, p) + 0.5 * p.dim * math.log(2.0 * math.pi * math.e)


def whiten(e: Engine, q: Gaussian, v: Vector) -> Vector:
    """Whiten a vector: L⁻¹v with Σ_q = LLᵀ."""
    return v / q.std if isinstance(q, DiagGaussian) else solve_vector(e, q.chol, v)


def log_prob(e: Engine, p: Gaussian, x: Vector) -> PerState:
    """Compute log N(x | μ, Σ) = −½‖L⁻¹(x − μ)‖² − ½ log|Σ| − (d/2) log 2π."""
    white = whiten(e, p, x - p.mean)
    return -0.5 * e.vecdot(white, white) - half_log_det(e, p) - 0.5 * p.dim * math.log(2.0 * math.pi)
