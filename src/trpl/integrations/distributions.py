"""Other libraries' distributions through a layer: PyTorch, Distrax, TensorFlow Probability on JAX, squashed or not.

    projected = project(KLProjection(0.03, 1e-3), predicted, old)        # of the same type as `predicted`

Distributions are recognised by their names and attributes, so no library is imported here. A bijection, tanh for
example, leaves every KL unchanged: with y = f(x), the densities of two policies at y share the Jacobian, which cancels
in their ratio. So projecting the base policy is exact for the squashed one too, in KL, if f is the same for both. The
other metrics and the entropy are those of the base policy.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from trpl.families import Bernoulli, Beta, Categorical, Policy, Product, is_policy
from trpl.gaussians import DiagGaussian, FullGaussian, Gaussian
from trpl.types import A_co, Generic


class Split(NamedTuple, Generic[A_co]):
    """The policy inside a distribution.

    Attributes:
        policy: The policy value.
        rebuild: Makes the distribution with another policy inside.
        bijections: The bijections around the policy: PyTorch's affine ones, and the types of all others.
        parts: Those of a composite distribution, by the keys of their actions.
    """

    policy: Policy[A_co]
    rebuild: Callable[[Policy], Any]
    bijections: tuple[Any, ...]
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
        kinds = [", ".join(getattr(x, "__name__", repr(x)) for x in p.bijections) or "none" for p in (inside, found)]
        raise ValueError(
            f"{first} and {name} must be transformed alike, by the same numbers; the bijections are "
            f"{' and '.join(kinds)}"
        )
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
    kind = type(p).__name__
    if kind in GAUSSIANS:
        make, name = GAUSSIANS[kind]
        given = getattr(p, "parameters", None)  # TensorFlow Probability's
        gaussian = make(p.loc, getattr(p, name) if given is None else given[name])
        again = type(p) if given is None else p.copy
        return Split(gaussian, lambda g: again(loc=g.mean, **{name: g.scale}), ())
    if kind in ("Categorical", "OneHotCategorical"):
        return Split(Categorical(_logits(p)), lambda policy: type(p)(logits=policy.logits, dtype=p.dtype), ())
    if hasattr(p, "distribution") and not kind.startswith("MultivariateNormal"):  # these have their scale in a bijector
        return _split_wrapper(p)
    raise ValueError(
        f"cannot find a policy with its event dimension in {kind}: known are MultivariateNormal with a diagonal or "
        "triangular scale, Categorical, OneHotCategorical, Independent(Normal, Bernoulli or Beta), and "
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
        single = _decomposed(transforms, distributions)
        return Split(
            inner.policy,
            lambda g: distributions.TransformedDistribution(inner.rebuild(g), transforms, validate_args=False),
            (*inner.bijections, *(x if _has_numbers(x, distributions) else type(x) for x in single)),
        )
    return Split(*open_distribution(p, "the distribution"), ())


def _decomposed(transforms: Iterable[Any], distributions: Any) -> Iterator[Any]:
    """List transforms one by one; TorchRL's `TanhNormal` composes tanh and the actions' range, for example."""
    for x in transforms:
        yield from _decomposed(x.parts, distributions) if isinstance(x, distributions.ComposeTransform) else (x,)


def _has_numbers(transform: Any, distributions: Any) -> bool:
    """Tell whether a transform is affine, so that two may differ; compiled code cannot look."""
    affine = isinstance(transform, distributions.AffineTransform)
    return affine and not sys.modules["torch"].compiler.is_compiling()


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
    options = {"dtype": inner.dtype} if kind == "Bernoulli" else {}

    def rebuild(found: Policy) -> Any:
        arguments = dict(zip(names, found.arrays, strict=True))
        return type(p)(type(inner)(**arguments, **options), reinterpreted_batch_ndims=1)

    return Split(policy, rebuild, ())


def _beta(p: Any) -> tuple[Beta, tuple[str, ...]]:
    if hasattr(p, "concentration1"):  # TensorFlow Probability
        return Beta(p.concentration1, p.concentration0), ("concentration1", "concentration0")
    return Beta(p.alpha, p.beta), ("alpha", "beta")


GAUSSIANS: dict[str, tuple[type[Gaussian], str]] = {
    "MultivariateNormalDiag": (DiagGaussian, "scale_diag"),
    "MultivariateNormalTriL": (FullGaussian, "scale_tril"),
    "MultivariateNormalTri": (FullGaussian, "scale_tri"),
}
"""Gaussians of Distrax and TensorFlow Probability: the policy, and their argument for its scale."""
COMPONENTS: dict[str, Callable[[Any], tuple[Policy, tuple[str, ...]]]] = {
    "Normal": lambda p: (DiagGaussian(p.loc, p.scale), ("loc", "scale")),
    "Bernoulli": lambda p: (Bernoulli(_logits(p)), ("logits",)),
    "Beta": _beta,
}
"""Univariate distributions that `Independent` turns into a policy: the policy, and its arrays as arguments."""
