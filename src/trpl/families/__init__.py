"""Policy families, and functions of policies of any family.

A family is one file of this folder, which registers it on import.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trpl.engines import engine_of
from trpl.families import bernoulli, beta, categorical, gaussian, product, sparse
from trpl.families.bernoulli import Bernoulli
from trpl.families.beta import Beta
from trpl.families.categorical import Categorical
from trpl.families.product import Product
from trpl.families.protocol import Family, Held, Policy, family_of, is_policy, known_policies, register
from trpl.families.sparse import SparseCategorical
from trpl.gaussians.values import check_same_type
from trpl.types import cast

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trpl.types import A

__all__ = [
    "Bernoulli",
    "Beta",
    "Categorical",
    "Family",
    "Held",
    "Policy",
    "Product",
    "SparseCategorical",
    "bernoulli",
    "beta",
    "categorical",
    "entropy",
    "family_of",
    "gaussian",
    "is_policy",
    "kl",
    "known_policies",
    "log_prob",
    "product",
    "register",
    "sparse",
]


def kl(p: Policy[A], q: Policy[A]) -> A:
    """Compute KL(p‖q), differentiable by the framework of the arrays.

    Args:
        p: The new policy.
        q: The old policy, of the same type.

    Returns:
        One number per state.

    Raises:
        ValueError: If the types, or the numbers of actions or classes, differ.

    Examples:
        >>> import numpy as np
        >>> from trpl import DiagGaussian, kl
        >>> old = DiagGaussian(np.zeros((3, 2)), np.ones(2))
        >>> kl(DiagGaussian(old.mean + 1.0, old.std), old)
        array([1., 1., 1.])
    """
    family = family_of(p)
    check_same_type(p, q)
    family.check_pair("new policy", p, q)
    return cast("A", family.kl(engine_of(*p.arrays, *q.arrays), p, q))


def entropy(p: Policy[A]) -> A:
    """Compute the entropy H(p).

    Args:
        p: The policy.

    Returns:
        One number per state; for Gaussians one per covariance (a single number if the batch shares it).

    Examples:
        >>> import numpy as np
        >>> from trpl import DiagGaussian, entropy
        >>> float(entropy(DiagGaussian(np.zeros((4, 2)), np.ones(2))).round(4))
        2.8379
    """
    return cast("A", family_of(p).entropy(engine_of(*p.arrays), p))


def log_prob(p: Policy[A], x: A | Sequence[A]) -> A:
    """Compute the log-density log p(x), or the log-probability for discrete actions.

    Args:
        p: The policy.
        x: An action per state: a vector, a whole number for a `Categorical`, 0 or 1 per component of a `Bernoulli`;
            for a `Product` one per part, or all side by side in the last axis.

    Returns:
        One number per state.

    Raises:
        ValueError: If the actions do not fit the policy, or are outside of what it takes.

    Examples:
        >>> import numpy as np
        >>> from trpl import DiagGaussian, log_prob
        >>> log_prob(DiagGaussian(np.zeros((3, 2)), np.ones(2)), np.zeros((3, 2))).round(4)
        array([-1.8379, -1.8379, -1.8379])
    """
    return cast("A", family_of(p).log_prob(engine_of(*p.arrays), p, cast("A", x)))
