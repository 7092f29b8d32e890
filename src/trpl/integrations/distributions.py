"""Other libraries' distributions through a layer: PyTorch, Distrax, TensorFlow Probability on JAX, squashed or not.

    projected = project(KLProjection(0.03, 1e-3), predicted, old)        # whatever `predicted` is, `projected` is too

A distribution is known by what it offers, so no library is imported here. A bijection, tanh for example, leaves every
KL unchanged: with y = f(x), the densities of two policies at y share the Jacobian, and it cancels in their ratio.
So projecting the Gaussian inside is exact for the squashed policy too, in KL. The other metrics and the entropy are
those of the Gaussian inside.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, NamedTuple

from trpl.gaussians import DiagGaussian, FullGaussian, Gaussian


class Split(NamedTuple):
    """The Gaussian inside a distribution, how to put another in its place, and the kinds of bijections around it."""

    gaussian: Gaussian
    rebuild: Callable[[Gaussian], Any]
    bijections: tuple[type, ...]


def project(layer: Any, predicted: Any, old: Any, **overrides: Any) -> Any:
    """Project the Gaussian inside a distribution.

    Args:
        layer: A layer of `trpl.torch` or `trpl.jax`.
        predicted: The network's distribution, of `torch.distributions` or Distrax, squashed or not.
        old: The distribution that collected the data, made in the same way.
        **overrides: Those of the layer's call, `mean_bound` for example.

    Returns:
        A distribution like `predicted` with the projected Gaussian inside.

    Raises:
        ValueError: There is no Gaussian inside, or the two are transformed differently.
    """
    inside = split(predicted)
    return inside.rebuild(layer(inside.gaussian, _matching(inside, old, "old"), **overrides))


def penalty(layer: Any, predicted: Any, projected: Any) -> Any:
    """Measure the layer's regression penalty between two distributions.

    Args:
        layer: A layer of `trpl.torch` or `trpl.jax`.
        predicted: The network's distribution.
        projected: What `project` made of it; no gradient goes into it.

    Returns:
        One number for each state.

    Raises:
        ValueError: There is no Gaussian inside, or the two are transformed differently.
    """
    inside = split(predicted)
    return layer.penalty(inside.gaussian, _matching(inside, projected, "projected"))


def _matching(inside: Split, other: Any, name: str) -> Gaussian:
    found = split(other)
    if found.bijections != inside.bijections:
        first, second = (
            ", ".join(kind.__name__ for kind in kinds) or "none" for kinds in (inside.bijections, found.bijections)
        )
        raise ValueError(f"predicted and {name} must be transformed alike; the bijections are {first} and {second}")
    return found.gaussian


def split(p: Any) -> Split:
    """Take a distribution apart."""
    if isinstance(p, DiagGaussian | FullGaussian):
        return Split(p, lambda gaussian: gaussian, ())
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(p, torch.distributions.Distribution):
        return _split_torch(p, torch.distributions)
    parameters = getattr(p, "parameters", None)
    if isinstance(parameters, dict) and hasattr(p, "copy"):  # TensorFlow Probability
        if parameters.get("scale_diag") is not None:
            diag = DiagGaussian(p.loc, parameters["scale_diag"])
            return Split(diag, lambda g: p.copy(loc=g.mean, scale_diag=g.std), ())
        if parameters.get("scale_tril") is not None:
            full = FullGaussian(p.loc, parameters["scale_tril"])
            return Split(full, lambda g: p.copy(loc=g.mean, scale_tril=g.chol), ())
    elif hasattr(p, "scale_diag"):  # Distrax
        return Split(DiagGaussian(p.loc, p.scale_diag), lambda g: type(p)(loc=g.mean, scale_diag=g.std), ())
    elif hasattr(p, "scale_tri"):
        return Split(FullGaussian(p.loc, p.scale_tri), lambda g: type(p)(loc=g.mean, scale_tri=g.chol), ())
    if hasattr(p, "distribution"):  # both: Independent, Transformed
        return _split_wrapper(p)
    raise ValueError(
        f"cannot find a Gaussian with its event dimension in {type(p).__name__}: known are MultivariateNormal with "
        "scale_diag or scale_tril, Independent(Normal), and bijections of these"
    )


def _split_torch(p: Any, distributions: Any) -> Split:
    from trpl.torch.distributions import from_distribution, to_distribution

    if isinstance(p, distributions.TransformedDistribution):
        inner = split(p.base_dist)
        transforms = list(p.transforms)
        return Split(
            inner.gaussian,
            lambda g: distributions.TransformedDistribution(inner.rebuild(g), transforms, validate_args=False),
            (*inner.bijections, *map(type, transforms)),
        )
    return Split(from_distribution(p, "the distribution"), to_distribution, ())


def _split_wrapper(p: Any) -> Split:
    inner = p.distribution
    if hasattr(p, "bijector"):
        found = split(inner)
        return Split(
            found.gaussian,
            lambda g: type(p)(distribution=found.rebuild(g), bijector=p.bijector),
            (*found.bijections, type(p.bijector)),
        )
    num_dims = getattr(p, "reinterpreted_batch_ndims", None)
    if num_dims != 1 or type(inner).__name__ != "Normal":
        raise ValueError(
            f"{type(p).__name__} must hold a Normal with one event dimension; it holds {type(inner).__name__}"
        )
    return Split(
        DiagGaussian(inner.loc, inner.scale),
        lambda g: type(p)(type(inner)(g.mean, g.std), reinterpreted_batch_ndims=1),
        (),
    )
