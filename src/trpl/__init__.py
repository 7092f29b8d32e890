"""Exact trust regions for policies, as differentiable layers for PyTorch and JAX, and a trainer.

A layer takes the policy that a network predicts and the one that collected the data, and returns the nearest policy
within the bounds, state by state; gradients flow through it:

    from trpl import DiagGaussian
    from trpl.torch import KLProjection  # or trpl.jax

    layer = KLProjection(mean_bound=0.03, cov_bound=1e-3)
    projected = layer(DiagGaussian(mean, std), DiagGaussian(old_mean, old_std))

Further reading, with `help(...)`:

    trpl.torch, trpl.jax     the layers: KLProjection, WassersteinProjection, FrobeniusProjection, JointKLProjection
    trpl.entropy_schedule    schedules of a policy's entropy target over training
    trpl.policies            load_policy: act with a trained run, in NumPy
    trpl.train, trpl.load    train from Python; on the command line: trpl train kl HalfCheetah-v4
    trpl.methods             register a method of your own
    trpl.integrations        adapters for other libraries, torch.distributions, export, tracking
    trpl.errors              the exceptions

The functions of this module work on PyTorch tensors, JAX arrays and NumPy arrays alike, and import no framework.
`trpl --help` lists the commands; docs/index.md is where the documentation begins.
"""

import importlib
import sys
from typing import TYPE_CHECKING, Any

if sys.version_info < (3, 11):  # noqa: UP036
    too_old = f"trpl needs Python 3.11 or newer; this is {sys.version.split()[0]}"
    raise SystemExit(too_old) if sys.argv[:1] == ["-m"] else ImportError(too_old)  # `python -m trpl.cli`: no traceback

from trpl.errors import ConvergenceError
from trpl.families import Bernoulli, Beta, Categorical, Product, SparseCategorical, entropy, kl, log_prob
from trpl.gaussians import DiagGaussian, FullGaussian, Gaussian, Parts, frobenius_parts, kl_parts, wasserstein_parts
from trpl.layers.layer import Audit
from trpl.methods import Method, Style, register

__version__ = "0.2.0"

if TYPE_CHECKING:
    from trpl.api import Run, load, train

__all__ = [
    "Audit",
    "Bernoulli",
    "Beta",
    "Categorical",
    "ConvergenceError",
    "DiagGaussian",
    "FullGaussian",
    "Gaussian",
    "Method",
    "Parts",
    "Product",
    "Run",
    "SparseCategorical",
    "Style",
    "entropy",
    "frobenius_parts",
    "kl",
    "kl_parts",
    "load",
    "log_prob",
    "register",
    "train",
    "wasserstein_parts",
]


def __getattr__(name: str) -> Any:
    """Import the trainer on first access: layers do not need it."""
    if name in ("Run", "load", "train"):
        return getattr(importlib.import_module("trpl.api"), name)
    raise AttributeError(f"module 'trpl' has no attribute {name!r}")
