"""Runs whose policies are no plain Gaussians: trained, resumed, evaluated and refused like any other."""

import functools

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

import tiny
import trpl
from trpl.errors import ConfigError
from trpl.methods import find
from trpl.policies.heads import CategoricalHead
from trpl.runs.evaluate import evaluate_run
from trpl.runs.run import resume, train

BOX = spaces.Box(np.array([-1.0, 0.0], np.float32), np.array([1.0, 10.0], np.float32))
HYBRID = spaces.Dict(aim=BOX, gear=spaces.MultiDiscrete([2, 3]), fire=spaces.MultiBinary(2))


pytestmark = pytest.mark.usefixtures("compiled_in_haste")


class Strict(gym.Env):
    """Takes nothing but elements of its action space; ten steps."""

    observation_space = spaces.Discrete(4)

    def __init__(self, action_space, render_mode=None):
        self.action_space, self.render_mode = action_space, render_mode

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return int(self.np_random.integers(4)), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        self.steps += 1
        return int(self.np_random.integers(4)), 1.0, False, self.steps == 10, {}


def test_classes_hold_the_bound(tmp_path):
    config = tiny.config("kl", "CartPole-v1", bound=0.02, learning_rate=0.05, policy_epochs=4, total_steps=64)
    table = trpl.load(train(config, tmp_path / "run", progress=False).folder).table()
    assert table["before_mean_max"].max() > 0.02 >= table["after_mean_max"].max() / (1 + 1e-4)
    assert "std_mean" not in table


def test_classes_keep_their_entropy(tmp_path):
    """In the first epoch the network's own entropy is below the target."""
    settings = {"bound": 0.02, "target_entropy": 0.3, "learning_rate": 0.05, "policy_epochs": 4, "total_steps": 64}
    table = trpl.load(train(tiny.config("kl-e", "CartPole-v1", **settings), tmp_path, progress=False).folder).table()
    assert table["entropy"][0] < table["entropy_target"][0]
    assert (table["projected_entropy"] >= table["entropy_target"] - 1e-6).all()
    assert table["after_mean_max"].max() <= 0.02 * (1 + 1e-4)


def test_trpo_steps_to_its_bound_with_classes(tmp_path):
    config = tiny.config("trpo", "CartPole-v1", bound=0.02, total_steps=64)
    table = trpl.load(train(config, tmp_path, progress=False).folder).table()
    assert (table["kl"] <= 0.02).all()
    assert (table["kl"] > 0.004).all()  # a rejected step leaves 0


def test_a_resumed_run_has_the_same_bits(tmp_path):
    config = tiny.config("ppo-m", "CartPole-v1", num_envs=2, total_steps=32 * 4, checkpoint_every=1)
    whole = train(config, tmp_path / "whole", progress=False)
    train(config, tmp_path / "parts", progress=False, callbacks=[lambda steps, _: steps < 64])
    parts = resume(tmp_path / "parts", progress=False)
    assert (parts.finished, parts.digest) == (True, whole.digest)
    found = evaluate_run(tmp_path / "parts", num_episodes=2)
    assert (found.returns == found.lengths).all()  # CartPole pays 1 a step
    assert trpl.load(tmp_path / "parts").policy(np.zeros((3, 4))).shape == (3,)


@pytest.mark.slow  # XLA takes its time over a product of four parts
def test_hybrid_actions_hold_the_bound(tmp_path):
    settings = {"learning_rate": 0.05, "policy_epochs": 3, "rollout_size": 32, "minibatch_size": 16, "value_epochs": 1}
    sizes = {"hidden_sizes": (4,), "hidden_sizes_vf": (4,), "eval_every": 1, "eval_episodes": 1}
    env = functools.partial(Strict, HYBRID)
    run = trpl.train("kl", env, steps=64, out=tmp_path / "run", progress=False, bound=0.02, **settings, **sizes)
    table = run.table()
    assert table["before_mean_max"].max() > 0.02 >= table["after_mean_max"].max() / (1 + 1e-4)
    assert HYBRID.contains(run.policy(np.array([0.0, 1.0, 0.0, 0.0])))
    assert np.isfinite(table["std_mean"]).all()


@pytest.mark.parametrize("policy", ["beta", "squashed"])
def test_bounded_policies_stay_in_their_box(policy, tmp_path):
    """`Strict` refuses an action outside its box."""
    env = functools.partial(Strict, BOX)
    settings = {"rollout_size": 32, "minibatch_size": 16, "policy_epochs": 1, "value_epochs": 1, "eval_episodes": 1}
    run = trpl.train("ppo-m", env, steps=64, out=tmp_path / "run", progress=False, policy=policy, **settings)
    assert BOX.contains(run.policy(np.eye(4)[2]))
    assert BOX.contains(run.policy(np.eye(4)[2], np.random.default_rng(0)))


@pytest.mark.parametrize("method", ["w2", "frobenius-e", "papi"])
def test_methods_for_gaussians_name_those_that_serve_other_policies(method, tmp_path):
    with pytest.raises(ConfigError, match=rf"{method!r} is for Gaussian policies, .*Categorical.* kl, .*ppo.*trpo"):
        train(tiny.config(method, "CartPole-v1"), tmp_path / "run", progress=False)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("task", "options", "most"),
    [("Pendulum-v1", {"policy": "beta"}, "0"), ("CartPole-v1", {"target_entropy": 5.0}, "0.693")],
)
def test_an_entropy_that_no_policy_keeps_is_refused(task, options, most, tmp_path):
    with pytest.raises(ConfigError, match=f"target_entropy must be below {most}, the largest entropy per component"):
        train(tiny.config("kl-e", task, **options), tmp_path / "run", progress=False)
    assert not (tmp_path / "run").exists()


def test_one_bound_is_for_policies_without_a_covariance():
    with pytest.raises(ConfigError, match="for one bound on the whole KL use method 'kl-joint'"):
        train(tiny.config("kl", bound=0.1), "unused", progress=False)
    with pytest.raises(ConfigError, match=r"takes mean_bound and cov_bound .* or bound .*: given are mean_bound$"):
        tiny.config("kl", "CartPole-v1", mean_bound=0.1)
    assert tiny.config("kl-e", "CartPole-v1", mean_bound=0.1, cov_bound=0.2).whole_bound == pytest.approx(0.3)
    config = tiny.config("kl", mean_bound=0.2, cov_bound=0.1)
    layer = find("kl").algorithm(config, obs_size=2, head=CategoricalHead((3,), (0,)))
    assert layer.policy.head.words == "Categorical"
    assert config.whole_bound == pytest.approx(0.3)
