"""What a user's checker sees: tensors come out where tensors went in. `make lint` checks it; nothing here runs."""

from __future__ import annotations

from typing import assert_type

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch import Tensor
from torch.distributions import Independent, MultivariateNormal

import trpl
import trpl.jax
import trpl.torch
from trpl import Bernoulli, Beta, Categorical, DiagGaussian, FullGaussian, Product
from trpl.engines import Engine, JaxEngine, NumpyEngine, TorchEngine
from trpl.families import Family, Policy, family_of
from trpl.layers.layer import Audit
from trpl.types import Array, BoolArray


def arrays_of_every_framework() -> None:
    """Each has what the maths asks of an array; a comparison gives a mask."""
    every: list[Array] = [np.zeros((3, 2)), torch.zeros(3, 2), jnp.zeros((3, 2))]
    masks: list[BoolArray] = [np.zeros(3) > 0.0, torch.zeros(3) > 0.0, jnp.zeros(3) > 0.0]
    assert_type(every[0] > 0.0, BoolArray)
    assert_type(every[0] + 1.0, Array)
    assert_type(~masks[0], BoolArray)


def engines_are_engines() -> None:
    """Each engine has every operation, on the arrays of its framework."""
    one: Engine[np.ndarray] = NumpyEngine()
    two: Engine[Tensor] = TorchEngine(concrete=True)
    three: Engine[jax.Array] = JaxEngine(concrete=True)
    assert_type(one.gram(np.eye(2)), np.ndarray)
    assert_type(two.xp.where(torch.ones(2) > 0.0, torch.ones(2), 0.0), Tensor)
    assert_type(three.cholesky(jnp.eye(2)), jax.Array)


def in_torch() -> None:
    """Values, layers, functions and distributions."""
    old = DiagGaussian(torch.zeros(64, 6), torch.ones(64, 6))
    assert_type(old, DiagGaussian[Tensor])
    assert_type(old.detached().std, Tensor)
    layer = trpl.torch.KLProjection(mean_bound=0.03, cov_bound=1e-3)
    projected = layer(old, old, cov_bound=torch.full((64,), 0.01))
    assert_type(projected, DiagGaussian[Tensor])
    assert_type(layer.penalty(old, projected), Tensor)
    assert_type(layer.audit(old, projected, old), Audit[Tensor])
    assert_type(trpl.kl(projected, old), Tensor)
    assert_type(trpl.kl_parts(projected, old).cov, Tensor)
    assert_type(trpl.log_prob(projected, torch.zeros(64, 6)), Tensor)
    assert_type(trpl.entropy(FullGaussian(torch.zeros(6), torch.eye(6))), Tensor)
    joint = trpl.torch.JointKLProjection(0.05)
    assert_type(joint(Categorical(torch.zeros(4, 3)), Categorical(torch.zeros(4, 3))), Categorical[Tensor])
    both = Product((Bernoulli(torch.zeros(4, 2)), Beta(torch.ones(4, 2), torch.ones(4, 2))))
    assert_type(joint(both, both), Product[Tensor])
    normal = MultivariateNormal(torch.zeros(6), torch.eye(6))
    assert_type(trpl.torch.WassersteinProjection(0.03, 1e-3)(normal, normal), MultivariateNormal)
    split = Independent(torch.distributions.Bernoulli(torch.ones(3)), 1)
    assert_type(joint(split, split), Independent[torch.distributions.Bernoulli])
    layer(old, 3.0)  # pyright: ignore[reportArgumentType]


def in_jax() -> None:
    """Values, layers and functions."""
    old = FullGaussian(jnp.zeros((64, 6)), jnp.eye(6))
    layer = trpl.jax.FrobeniusProjection(0.03, 1e-3)
    assert_type(layer(old, old), FullGaussian[jax.Array])
    assert_type(layer.penalty(old, old), jax.Array)
    assert_type(layer.audit(old, old, old).before.mean, jax.Array)
    assert_type(trpl.jax.JointKLProjection(0.05)(old, old), FullGaussian[jax.Array])
    assert_type(trpl.entropy(old), jax.Array)


def in_the_maths(p: Policy, q: DiagGaussian) -> None:
    """Bare names are of an `Array`, never of `Any`."""
    assert_type(p.arrays, tuple[Array, ...])
    assert_type(q.mean, Array)
    assert_type(family_of(q), Family[DiagGaussian[Array]])
    assert_type(p.missing, int)  # pyright: ignore[reportAttributeAccessIssue, reportAssertTypeFailure]
