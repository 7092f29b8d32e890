"""Exact trust regions for Gaussian policies.

The layers are in `trpl.torch` and `trpl.jax`; what is here works on arrays of either, and on NumPy's.
"""

from trpl.errors import ConvergenceError
from trpl.gaussians import (
    DiagGaussian,
    FullGaussian,
    Gaussian,
    Parts,
    entropy,
    frobenius_parts,
    kl_parts,
    log_prob,
    wasserstein_parts,
)
from trpl.methods import Method, Style, register
from trpl.projections.layer import Audit

__version__ = "0.2.0"

__all__ = [
    "Audit",
    "ConvergenceError",
    "DiagGaussian",
    "FullGaussian",
    "Gaussian",
    "Method",
    "Parts",
    "Style",
    "entropy",
    "frobenius_parts",
    "kl_parts",
    "log_prob",
    "register",
    "wasserstein_parts",
]
