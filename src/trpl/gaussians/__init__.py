"""Gaussian values, entropy and log-density, and the distances by parts."""

from trpl.gaussians.density import entropy, half_log_det, log_prob, whiten
from trpl.gaussians.distances import frobenius_parts, kl_parts, mahalanobis, wasserstein_parts
from trpl.gaussians.values import DiagGaussian, FullGaussian, Gaussian, Parts

__all__ = [
    "DiagGaussian",
    "FullGaussian",
    "Gaussian",
    "Parts",
    "entropy",
    "frobenius_parts",
    "half_log_det",
    "kl_parts",
    "log_prob",
    "mahalanobis",
    "wasserstein_parts",
    "whiten",
]
