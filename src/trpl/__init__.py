"""Exact trust regions for Gaussian policies.

The layers are in `trpl.torch` and `trpl.jax`; what is here works on arrays of either, and on NumPy's.
"""

from trpl.errors import ConvergenceError
from trpl.families import entropy, kl, log_prob
from trpl.gaussians import DiagGaussian, FullGaussian, Gaussian, Parts, frobenius_parts, kl_parts, wasserstein_parts
from trpl.layers.layer import Audit
from trpl.methods import Method, Style, register

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
    "kl",
    "kl_parts",
    "log_prob",
    "register",
    "wasserstein_parts",
]
