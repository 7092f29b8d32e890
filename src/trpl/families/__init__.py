"""Kinds of policies, and what one may ask of any of them.

A family is one file of this folder; importing it registers it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trpl.engines import engine_of
from trpl.families import gaussian
from trpl.families.protocol import Family, Held, Policy, family_of, is_policy, known_policies, register

if TYPE_CHECKING:
    from trpl.types import Array, PerState

__all__ = [
    "Family",
    "Held",
    "Policy",
    "entropy",
    "family_of",
    "gaussian",
    "is_policy",
    "kl",
    "known_policies",
    "log_prob",
    "register",
]


def kl(p: Policy, q: Policy) -> PerState:
    """KL(p‖q), one for each state, differentiable by the framework of the arrays.

    Args:
        p: The newer policy.
        q: The older one, of the same type.

    Returns:
        An array of the batch shape.
    """
    family = family_of(p)
    return family.kl(engine_of(*family.arrays(p), *family.arrays(q)), p, q)


def entropy(p: Policy) -> PerState:
    """H(p), one for each state; for Gaussians one for each covariance (a single number when the batch shares it)."""
    family = family_of(p)
    return family.entropy(engine_of(*family.arrays(p)), p)


def log_prob(p: Policy, x: Array) -> PerState:
    """log p(x), one for each state.

    Args:
        p: The policy.
        x: An action for each state.
    """
    family = family_of(p)
    return family.log_prob(engine_of(*family.arrays(p), x), p, x)
