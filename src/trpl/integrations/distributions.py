"""Other libraries' distributions through a layer: PyTorch, Distrax, TensorFlow Probability on JAX, squashed or not.

    projected = project(KLProjection(0.03, 1e-3), predicted, old)        # of the same type as `predicted`

Distributions are recognised by their attributes, so no library is imported here. A bijection, tanh for example, leaves
every KL unchanged: with y = f(x), the densities of two policies at y share the Jacobian, which cancels in their ratio.
So projecting the base policy is exact for the squashed one too, in KL. The other metrics and the entropy are those of
the base policy.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from trpl.families import Bernoulli, Beta, Categorical, Policy, Product, is_policy
from trpl.gaussians import DiagGaussian, FullGaussian, Gaussian
from trpl.types import A_co, Generic


class Split(NamedTuple, Generic[A_co]):
    """The policy inside a distribution.

    Attributes:
        policy: The policy value.
        rebuild: Makes the distribution with another policy inside.
        bijections: The types of the bijections around the policy.
        parts: Those of a composite distribution, by the keys of their actions.
    """

    policy: Policy[A_co]
    rebuild: Callable[[Policy], Any]
    bijections: tuple[type, ...]
    parts: Mapping[Any, Split[A_co]] = {}

    @property
    def gaussian(self) -> Gaussian[A_co]:
        """The policy, for callers that support only Gaussians.

        Raises:
            ValueError: If it is of another family.
        """
        if not isinstance(self.policy, DiagGaussian | FullGaussian):
            raise ValueError(f"a Gaussian is needed here, not a {type(self.policy).__name__}")
        return self.policy


def project(layer: Any, predicted: Any, old: Any, **overrides: Any) -> Any:
    """Project the policy inside a distribution.

    Args:
        layer: A layer of `trpl.torch` or `trpl.jax`.
        predicted: The network's distribution, of PyTorch, Distrax or TensorFlow Probability, squashed or not.
        old: The distribution that collected the data, made in the same way.
        **overrides: Arguments of the layer's call, `mean_bound` for example.

    Returns:
        A distribution like `predicted` with the projected policy inside.

    Raises:
        ValueError: There is no policy of a known family inside, or the two are transformed differently.
    """
    inside = split(predicted)
    return inside.rebuild(layer(inside.policy, matching(inside, old, "old"), **overrides))


def penalty(layer: Any, predicted: Any, projected: Any) -> Any:
    """Measure the layer's regression penalty between two distributions.

    Args:
        layer: A layer of `trpl.torch` or `trpl.jax`.
        predicted: The network's distribution.
        projected: The output of `project`, treated as a constant.

    Returns:
        One number per state.

    Raises:
        ValueError: There is no policy of a known family inside, or the two are transformed differently.
    """
    inside = split(predicted)
    return layer.penalty(inside.policy, matching(inside, projected, "projected"))


def matching(inside: Split, other: Any, name: str, *, first: str = "predicted") -> Policy:
    """Find the policy inside another distribution, which must be transformed alike.

    Args:
        inside: The first distribution, split.
        other: The other distribution.
        name: Its name in messages.
        first: The first one's name in messages.

    Returns:
        The policy.

    Raises:
        ValueError: There is no policy of a known family inside, or the two are transformed differently.
    """
    found = split(other)
    if found.bijections != inside.bijections:
        kinds = [", ".join(kind.__name__ for kind in p.bijections) or "none" for p in (inside, found)]
        raise ValueError(f"{first} and {name} must be transformed alike; the bijections are {' and '.join(kinds)}")
    return found.policy


def split(p: Any) -> Split:
    """Find the policy inside a distribution.

    Args:
        p: A policy value, or a distribution of PyTorch, Distrax or TensorFlow Probability, squashed or not.

    Returns:
        The policy, and how to replace it.

    Raises:
        ValueError: If there is no policy of a known family inside.
    """
    if is_policy(p):
        return Split(p, lambda policy: policy, ())
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(p, torch.distributions.Distribution):
        return _split_composite(p) if hasattr(p, "dists") else _split_torch(p, torch.distributions)
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
    if type(p).__name__ in ("Categorical", "OneHotCategorical"):  # both
        return Split(Categorical(_logits(p)), lambda policy: type(p)(logits=policy.logits), ())
    if hasattr(p, "distribution"):  # both: Independent, Transformed
        return _split_wrapper(p)
    raise ValueError(
        f"cannot find a policy with its event dimension in {type(p).__name__}: known are MultivariateNormal with "
        "scale_diag or scale_tril, Categorical, OneHotCategorical, Independent(Normal, Bernoulli or Beta), and "
        "bijections of these"
    )


def _logits(p: Any) -> Any:
    """Return the logits, for TensorFlow Probability also if it was given probabilities."""
    return p.logits_parameter() if hasattr(p, "logits_parameter") else p.logits


def _split_torch(p: Any, distributions: Any) -> Split:
    from trpl.torch.distributions import open_distribution

    if isinstance(p, distributions.TransformedDistribution):
        inner = split(p.base_dist)
        transforms = list(p.transforms)
        return Split(
            inner.policy,
            lambda g: distributions.TransformedDistribution(inner.rebuild(g), transforms, validate_args=False),
            (*inner.bijections, *map(type, transforms)),
        )
    return Split(*open_distribution(p, "the distribution"), ())


def _split_composite(p: Any) -> Split:
    """Split tensordict's `CompositeDistribution`, which has a distribution for each key of an action."""
    parts = {key: split(part) for key, part in p.dists.items()}

    def rebuild(policy: Policy) -> Any:
        assert isinstance(policy, Product)
        shape = sys.modules["tensordict"].TensorDict({}, p.batch_shape)
        dists = {key: part.rebuild(own) for (key, part), own in zip(parts.items(), policy.parts, strict=True)}
        return type(p).from_distributions(shape, dists, log_prob_key=p.log_prob_key, entropy_key=p.entropy_key)

    bijections = tuple(kind for part in parts.values() for kind in part.bijections)
    return Split(Product(tuple(part.policy for part in parts.values())), rebuild, bijections, parts)


def _split_wrapper(p: Any) -> Split:
    inner = p.distribution
    if hasattr(p, "bijector"):
        found = split(inner)
        return Split(
            found.policy,
            lambda g: type(p)(distribution=found.rebuild(g), bijector=p.bijector),
            (*found.bijections, type(p.bijector)),
        )
    kind, num_dims = type(inner).__name__, getattr(p, "reinterpreted_batch_ndims", None)
    if num_dims != 1 or kind not in COMPONENTS:
        raise ValueError(
            f"{type(p).__name__} must hold a {', a '.join(COMPONENTS)} with one event dimension; "
            f"it holds a {kind} with {num_dims}"
        )
    policy, names = COMPONENTS[kind](inner)
    return Split(
        policy,
        lambda found: type(p)(type(inner)(**dict(zip(names, found, strict=True))), reinterpreted_batch_ndims=1),
        (),
    )


def _beta(p: Any) -> tuple[Beta, tuple[str, ...]]:
    if hasattr(p, "concentration1"):  # TensorFlow Probability
        return Beta(p.concentration1, p.concentration0), ("concentration1", "concentration0")
    return Beta(p.alpha, p.beta), ("alpha", "beta")


COMPONENTS: dict[str, Callable[[Any], tuple[Policy, tuple[str, ...]]]] = {
    "Normal": lambda p: (DiagGaussian(p.loc, p.scale), ("loc", "scale")),
    "Bernoulli": lambda p: (Bernoulli(_logits(p)), ("logits",)),
    "Beta": _beta,
}
"""Univariate distributions that `Independent` turns into a policy: the policy, and its arrays as arguments."""
