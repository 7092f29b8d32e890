"""Brax's PPO through a trust region: its own training loop, inside its jit, and Brax as it was afterwards."""

import inspect
from importlib import metadata

import pytest

pytest.importorskip("brax", reason="Brax is not installed: pip install trpl[brax]")

import jax
import jax.numpy as jnp

if tuple(int(part) for part in jax.__version__.split(".")[:2]) >= (0, 10):
    pytest.skip("Brax cannot train on jax 0.10 and later; `make hosts` tries it apart", allow_module_level=True)

from brax import envs
from brax.training.agents.ppo import losses
from brax.training.agents.ppo import networks as ppo_networks
from brax.training.agents.ppo import train as ppo
from brax.training.types import Transition

from trpl import DiagGaussian, kl_parts, log_prob
from trpl.integrations.brax import trust_region
from trpl.jax import KLProjection

VERSION = metadata.version("brax")
SMALL = {"num_timesteps": 2048, "episode_length": 32, "num_envs": 16, "unroll_length": 4, "batch_size": 16}
SMALL |= {"num_minibatches": 4, "num_updates_per_batch": 2, "num_evals": 2, "seed": 0, "learning_rate": 3e-3}


def test_the_seam():
    """What the adapter relies on in Brax; where this fails, Brax has moved."""
    assert VERSION.startswith("0.14."), f"Brax {VERSION} was never tried with trpl"
    named = list(inspect.signature(losses.compute_ppo_loss).parameters)
    wanted = ["params", "normalizer_params", "data", "rng", "ppo_network"]
    assert named[:5] == wanted, f"compute_ppo_loss of Brax {VERSION} begins with {', '.join(named[:5])}"
    assert "clipping_epsilon" in named, f"compute_ppo_loss of Brax {VERSION} has no clipping_epsilon"
    assert "ppo_losses.compute_ppo_loss" in inspect.getsource(ppo.train), "ppo.train no longer reads the loss by name"
    assert "'distribution_params'" in inspect.getsource(ppo_networks), "Brax no longer stores the old policy"


def batch(num_envs=6, num_steps=5, seed=0):
    """A network, its parameters, and transitions whose old policy is another network's."""
    network = ppo_networks.make_ppo_networks(3, 2, policy_hidden_layer_sizes=(8,), value_hidden_layer_sizes=(8,))
    keys = jax.random.split(jax.random.PRNGKey(seed), 8)
    params = losses.PPONetworkParams(network.policy_network.init(keys[0]), network.value_network.init(keys[1]))
    observation = jax.random.normal(keys[2], (num_envs, num_steps, 3))
    old = network.policy_network.apply(None, network.policy_network.init(keys[3]), observation)
    raw = jax.random.normal(keys[4], (num_envs, num_steps, 2))
    density = network.parametric_action_distribution.log_prob(old, raw)
    ones = jnp.ones((num_envs, num_steps))
    data = Transition(
        observation=observation,
        action=jnp.tanh(raw),
        reward=jax.random.normal(keys[5], ones.shape),
        discount=ones,
        next_observation=observation,
        extras={
            "state_extras": {"truncation": 0 * ones},
            "policy_extras": {"distribution_params": old, "raw_action": raw, "log_prob": density},
        },
    )
    return network, params, data


def test_the_loss_is_that_of_the_projected_policy():
    """Written out: −mean(ratio of the projected policy · A), and the penalty with its weight."""
    network, params, data = batch()
    settings = {"entropy_cost": 0.0, "vf_coefficient": 0.0, "normalize_advantage": False}
    key = jax.random.PRNGKey(0)
    with trust_region(mean_bound=0.01, cov_bound=1e-3, regression_weight=3.0):
        total, metrics = losses.compute_ppo_loss(params, None, data, key, ppo_network=network, **settings)
    create = network.parametric_action_distribution.create_dist
    apply = network.policy_network.apply
    new, old = (
        create(apply(None, params.policy, data.observation)),
        create(data.extras["policy_extras"]["distribution_params"]),
    )
    new, old = DiagGaussian(new.loc, new.scale), DiagGaussian(old.loc, old.scale)
    layer = KLProjection(0.01, 1e-3)
    projected = layer(new, old)
    raw = data.extras["policy_extras"]["raw_action"]
    ratio = jnp.exp(log_prob(projected, raw) - log_prob(old, raw))  # the tanh's Jacobian cancels
    baseline = network.value_network.apply(None, params.value, data.observation)
    bootstrap = network.value_network.apply(None, params.value, data.next_observation[:, -1])
    _, advantages = losses.compute_gae(
        0 * ratio.T, 0 * ratio.T, data.reward.T, baseline.T, bootstrap, lambda_=0.95, discount=0.9
    )
    wanted = -(ratio * advantages.T).mean() + 3.0 * layer.penalty(new, projected).mean()
    assert total == pytest.approx(float(wanted), rel=1e-4)
    parts = kl_parts(new, old)
    assert metrics["kl_mean"] == pytest.approx(float((parts.mean + parts.cov).mean()), rel=1e-4)
    assert metrics["kl_max"] == pytest.approx(float((parts.mean + parts.cov).max()), rel=1e-4)


def test_an_entropy_beyond_the_one_bound_is_the_nearest_within_it():
    network, params, data = batch()
    with trust_region(projection="kl-joint", min_entropy=2.0):
        loss = jax.jit(lambda p: losses.compute_ppo_loss(p, None, data, jax.random.PRNGKey(1), ppo_network=network)[0])
        assert jnp.isfinite(loss(params))


def test_afterwards_brax_is_as_it_was():
    before = losses.compute_ppo_loss
    with trust_region():
        assert losses.compute_ppo_loss is not before
    with pytest.raises(RuntimeError), trust_region():
        raise RuntimeError
    assert losses.compute_ppo_loss is before


@pytest.mark.parametrize("settings", [{"projection": "clip"}, {"cov_bound": 0.0}, {"regression_weight": -1.0}])
def test_bad_settings(settings):
    with pytest.raises(ValueError, match="must"), trust_region(**settings):
        pass


@pytest.mark.slow
@pytest.mark.parametrize("projection", ["kl", "w2", "frobenius", "kl-joint"])
def test_it_trains(projection):
    with trust_region(projection=projection):
        _, _, metrics = ppo.train(envs.get_environment("fast"), **SMALL)
    assert jnp.isfinite(metrics["eval/episode_reward"])
    assert metrics["training/kl_max"] >= metrics["training/kl_mean"] >= 0
