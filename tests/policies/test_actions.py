"""Actions in units of the box: the map, the checkpoint, and the policy that acts."""

import gymnasium as gym
import numpy as np
import pytest

from trpl.policies.actions import action_map, map_problem, stored_map

LOW, HIGH = np.array([0.0, -1.0, -np.inf, 5.0]), np.array([1000.0, 1.0, np.inf, np.inf])


def test_the_middle_is_zero_and_the_ends_are_one():
    found = action_map(LOW, HIGH, units="box", clip=False)
    a = np.array([[-1, -1, -1, -1], [0, 0, 0, 0], [1, 1, 1, 1]], np.float32)
    np.testing.assert_array_equal(found(a), [[0, -1, -1, -1], [500, 0, 0, 0], [1000, 1, 1, 1]])
    assert found(a).dtype == np.float32


def test_clipping_alone_and_nothing():
    assert action_map(LOW, HIGH, units="raw", clip=False) is None
    found = action_map(LOW, HIGH, units="raw", clip=True)
    np.testing.assert_array_equal(found(np.array([-3.0, 2.0, 7.0, 1.0])), [0.0, 1.0, 7.0, 5.0])


def test_to_a_checkpoint_and_back():
    found = action_map(LOW, HIGH, units="box", clip=True)
    arrays = found.arrays() | {"mean/bias": np.zeros(4)}
    assert map_problem(arrays, 4) is None
    assert "not 3 numbers" in map_problem(arrays, 3)
    assert "only part" in map_problem({name: a for name, a in arrays.items() if name != "action/high"}, 4)
    again = stored_map(arrays)
    for one, other in zip(found, again, strict=True):
        np.testing.assert_array_equal(one, other)


class Wide(gym.Env):
    """Reward −((action − 750)/1000)²: N(0, 1) on the raw action never gets near it."""

    observation_space = gym.spaces.Box(-1.0, 1.0, (1,))
    action_space = gym.spaces.Box(0.0, 1000.0, (1,))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps, self.seen = 0, []
        return np.zeros(1, np.float32), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        self.steps += 1
        return np.zeros(1, np.float32), -(float((action[0] - 750) / 1000) ** 2), False, self.steps == 10, {}


def test_a_wide_box_is_learned_and_exported(tmp_path):
    """The environment refuses actions outside its box; what is exported acts in it too."""
    import trpl
    from trpl.integrations.export import export, load_npz

    settings = {
        "rollout_size": 200,
        "policy_epochs": 10,
        "learning_rate": 3e-3,
        "minibatch_size": 50,
        "mean_bound": 0.1,
    }
    run = trpl.train("kl", Wide, steps=4000, out=tmp_path / "run", progress=False, eval_every=5, **settings)
    assert (run.config.action_units, run.config.clip_actions) == ("box", True)
    action = run.policy(np.zeros(1))
    assert 600 < action[0] < 1000  # clipping draws the best mean above 750
    exported = load_npz(export(run.folder, tmp_path / "policy.npz"))
    np.testing.assert_allclose(exported(np.zeros((1, 1))), [action], rtol=1e-5)
    assert (exported.low, exported.high) == (0.0, 1000.0)


def test_initial_deviation():
    import jax

    from trpl.policies.heads import GaussianHead
    from trpl.policies.networks import PolicyNetwork

    for covariance, contextual in (("diagonal", False), ("full", False), ("full", True)):
        policy = PolicyNetwork(
            obs_size=3, head=GaussianHead(2, covariance=covariance, contextual=contextual, initial_std=0.3)
        )
        found = policy(policy.init(jax.random.key(0)), np.zeros((1, 3), np.float32))
        scale = found.std if covariance == "diagonal" else np.diagonal(found.chol, axis1=-2, axis2=-1)
        np.testing.assert_allclose(scale, 0.3 * np.ones_like(scale), rtol=1e-5)


@pytest.mark.parametrize(("env_id", "units"), [("Hopper-v4", "raw"), ("Pendulum-v1", "box")])
def test_the_papers_tasks_stay_raw(env_id, units):
    from trpl.presets import preset

    config = preset("kl", env_id)
    assert (config.action_units, config.clip_actions) == (units, units == "box")
