"""TRPO: the direction against an explicit solve, the bound after the line search."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from trpl.algorithms import Batch, make_algorithm, trpo
from trpl.algorithms.learner import Samples
from trpl.gaussians import kl_parts
from trpl.policies.heads import GaussianHead
from trpl.policies.networks import PolicyNetwork
from trpl.presets import preset

OBS, ACT, STEPS = 4, 2, 48
TINY = {
    "rollout_size": STEPS,
    "total_steps": 10 * STEPS,
    "minibatch_size": 16,
    "value_epochs": 2,
    "hidden_sizes": (6,),
    "hidden_sizes_vf": (6,),
}
KINDS = [("diagonal", False), ("diagonal", True), ("full", False), ("full", True)]


def random_batch(seed=0, *, scale=1.0):
    rng = np.random.default_rng(seed)
    return Batch(
        observations=rng.normal(size=(STEPS, 1, OBS)).astype(np.float32),
        next_observations=rng.normal(size=(STEPS, 1, OBS)).astype(np.float32),
        actions=rng.normal(size=(STEPS, 1, ACT)).astype(np.float32),
        rewards=(scale * rng.normal(size=(STEPS, 1))).astype(np.float32),
        terminated=rng.random((STEPS, 1)) < 0.1,
        truncated=np.zeros((STEPS, 1), bool),
    )


@cache
def algorithm_of(**changes):
    return make_algorithm(preset("trpo", "HalfCheetah-v4", **TINY | changes), obs_size=OBS, head=GaussianHead(ACT))


def trained(*, updates=1, **changes):
    algorithm = algorithm_of(**changes)
    states, metrics = [jax.jit(algorithm.init)(jax.random.key(0))], []
    for seed in range(updates):
        state = jax.tree.map(jnp.array, states[-1])  # an update consumes the state it is given
        state, found = algorithm.update(state, random_batch(seed), np.random.default_rng(seed))
        states.append(state)
        metrics.append({name: float(value) for name, value in found.items()})
    return algorithm, states, metrics


@pytest.mark.parametrize(("covariance", "contextual"), KINDS)
def test_the_direction_is_that_of_an_explicit_fisher_solve(covariance, contextual):
    with jax.enable_x64(True):
        policy = PolicyNetwork(obs_size=OBS, head=GaussianHead(ACT, covariance, contextual), hidden_sizes=(4,))
        rng = np.random.default_rng(0)
        shapes = jax.eval_shape(policy.init, jax.random.key(0))
        weights = {name: jnp.asarray(0.4 * rng.normal(size=w.shape)) for name, w in shapes.items()}
        observations = jnp.asarray(rng.normal(size=(STEPS, OBS)))
        old = jax.jit(policy)(weights, observations)
        samples = Samples(observations, None, None, None, None, old, None)
        flat, unravel = ravel_pytree(weights)

        def kl(vector):
            divergence = kl_parts(policy(unravel(vector), observations), old)
            return (divergence.mean + divergence.cov).mean()

        def flat_product(vector):
            product = trpo.fisher_product(policy, weights, samples, damping=0.1)
            return ravel_pytree(product(unravel(vector)))[0]

        fisher = jax.jit(jax.hessian(kl))(flat)  # by brute force
        target = jnp.asarray(rng.normal(size=flat.size))
        np.testing.assert_allclose(jax.jit(flat_product)(target), fisher @ target + 0.1 * target, rtol=1e-8, atol=1e-10)
        solved = jax.jit(lambda v: trpo.conjugate_gradients(flat_product, v, flat.size))(target)
        expected = jnp.linalg.solve(fisher + 0.1 * jnp.eye(flat.size), target)
        np.testing.assert_allclose(solved, expected, rtol=1e-3, atol=1e-4)


def test_conjugate_gradients_stop_when_told():
    matrix = jnp.diag(jnp.array([1.0, 2.0, 5.0]))
    target = jnp.array([1.0, 1.0, 1.0])
    one, two, many = (trpo.conjugate_gradients(lambda v: matrix @ v, target, n) for n in (1, 2, 3))
    np.testing.assert_allclose(many, 1 / jnp.array([1.0, 2.0, 5.0]), rtol=1e-4)  # three dimensions, three steps
    np.testing.assert_allclose(one, jnp.full(3, 3 / 8), rtol=1e-6)  # ⟨g, g⟩/⟨g, Fg⟩ along g
    assert len({tuple(np.asarray(x)) for x in (one, two, many)}) == 3
    assert not trpo.conjugate_gradients(lambda v: matrix @ v, jnp.zeros(3), 10).any()  # nothing to solve, no NaN


@pytest.mark.parametrize(("covariance", "contextual"), [KINDS[0], KINDS[-1]])
def test_the_bound_holds_and_the_surrogate_improves(covariance, contextual):
    bound = 0.1 if contextual else 1e-3
    _, _, metrics = trained(updates=4, covariance=covariance, contextual=contextual, bound=bound, cg_damping=1e-3)
    for found in metrics:
        assert 0.0 < found["kl"] <= bound
        assert found["policy_loss"] < 0.0  # normalised advantages: the loss of the old policy is 0
        assert found["step_share"] == 0.5 ** (found["line_search_tries"] - 1)


def search(kl, loss, *, bound=0.3, num_halvings=10):
    """Along one weight from 0 to 1."""
    start, step = {"x": jnp.zeros(())}, {"x": jnp.ones(())}
    options = {"loss_before": loss(0.0), "bound": bound, "num_halvings": num_halvings}
    weights, found = trpo.line_search(lambda w: loss(w["x"]), lambda w: kl(w["x"]), start, step, **options)
    assert weights["x"] == found["step_share"]
    return float(weights["x"]), int(found["line_search_tries"])


def test_line_search_takes_the_longest_step_that_will_do():
    assert search(lambda x: 0.0 * x, lambda x: -x) == (1.0, 1)
    assert search(lambda x: x, lambda x: -x) == (0.25, 3)  # held by the bound of 0.3
    assert search(lambda x: 0.0 * x, lambda x: x * (x - 0.6)) == (0.5, 2)  # held by the loss
    assert search(lambda x: x, lambda x: x) == (0.0, 10)  # nothing improves: stay
    assert search(lambda x: x, lambda x: -x, bound=1e-6, num_halvings=4) == (0.0, 4)  # not enough halvings: stay


def test_without_advantages_nothing_moves():
    algorithm, (before, _), _ = trained()
    batch = random_batch()._replace(rewards=np.zeros((STEPS, 1), np.float32), terminated=np.ones((STEPS, 1), bool))
    state = jax.tree.map(jnp.array, before)
    state = state._replace(value=jax.tree.map(jnp.zeros_like, state.value))
    state, metrics = algorithm.update(state, batch, np.random.default_rng(0))
    assert metrics["kl"] == 0.0
    assert all(np.array_equal(a, b) for a, b in zip(*map(jax.tree.leaves, (before.policy, state.policy)), strict=True))


@pytest.mark.parametrize("change", [{"cg_steps": 2}, {"cg_damping": 1.0}, {"entropy_weight": 0.1}])
def test_options_have_an_effect(change):
    _, (_, plain), _ = trained()
    _, (_, changed), _ = trained(**change)
    assert not np.allclose(plain.policy["mean/weight"], changed.policy["mean/weight"], rtol=1e-3)
