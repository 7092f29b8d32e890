"""Lean steps against `gym.make`: the same bits, step by step, whole episodes long."""

import gymnasium as gym
import numpy as np
import pytest

from trpl.rollouts import Environment, make_environment
from trpl.rollouts.lean import TASKS, lean_step

NAMES = ("HalfCheetah", "Hopper", "Walker2d", "Ant", "Humanoid")
TASK_IDS = [f"{name}-v{version}" for name in NAMES for version in (4, 5)] + ["trpl/HumanoidPaper-v4"]
STEPS = 1200  # more than the longest episode


def test_every_task_has_a_lean_step():
    assert len(TASKS) == len(TASK_IDS)
    for env_id in TASK_IDS:
        assert lean_step(make_environment(env_id).unwrapped) is not None, env_id


@pytest.mark.filterwarnings("ignore:.*is out of date")
@pytest.mark.parametrize("env_id", TASK_IDS)
@pytest.mark.parametrize("size", [0.1, 1.0])  # small actions keep the walkers on their feet for longer
def test_same_observations_rewards_and_endings_as_gymnasium(env_id, size):
    lean, plain = Environment(env_id, seed=3), make_environment(env_id)
    plain.reset(seed=3)
    observation, other = lean.begin(), plain.reset()[0]
    generator, endings = np.random.default_rng(0), []
    for _ in range(STEPS if "Humanoid" not in env_id else STEPS // 2):
        assert observation.tobytes() == other.tobytes()
        action = (size * generator.standard_normal(lean.action_size)).astype(np.float32)
        observation, reward, terminated, truncated = lean.step(action)
        other, other_reward, other_terminated, other_truncated, _ = plain.step(action)
        assert (reward, terminated, truncated) == (other_reward, other_terminated, other_truncated)
        if terminated or truncated:
            assert observation.tobytes() == other.tobytes()
            endings.append((terminated, truncated))
            observation, other = lean.begin(), plain.reset()[0]
    assert endings


@pytest.mark.filterwarnings("ignore:.*is out of date")
def test_left_aside_for_anything_but_the_task_itself():
    class Wrapper(gym.Wrapper):
        def step(self, action):
            return self.env.step(2 * action)

    gym.register("test/Wrapped-v0", lambda **_: Wrapper(gym.make("Hopper-v4")), max_episode_steps=1000)
    gym.register("test/Heavier-v0", "gymnasium.envs.mujoco.hopper_v4:HopperEnv", max_episode_steps=1000,
                 kwargs={"ctrl_cost_weight": 0.1})  # fmt: skip
    try:
        for env_id in ("test/Wrapped-v0", "test/Heavier-v0", "Pendulum-v1", "Swimmer-v4"):
            assert Environment(env_id, seed=0)._lean is None, env_id
    finally:
        del gym.registry["test/Wrapped-v0"], gym.registry["test/Heavier-v0"]
    patched = make_environment("Hopper-v4").unwrapped
    patched.step = lambda action: None
    assert lean_step(patched) is None


def test_not_trusted_where_the_task_gives_other_bits():
    """Another version of Gymnasium may compute something else: then its own step is taken."""
    env = make_environment("Hopper-v4").unwrapped
    assert lean_step(env) is not None
    env.__class__.control_cost, kept = lambda self, action: 0.0, env.__class__.control_cost
    try:
        assert lean_step(env) is None
    finally:
        env.__class__.control_cost = kept


def test_other_dtypes_and_shapes_take_the_guarded_way():
    environment = Environment("Hopper-v4", seed=0)
    environment.begin(seed=0)
    narrow, *_ = environment.step(np.full(3, 0.1, np.float32))
    environment.begin(seed=0)
    wide, *_ = environment.step(np.full(3, 0.1, np.float64))
    assert narrow.tobytes() == wide.tobytes()
    with pytest.raises(RuntimeError, match="Action dimension mismatch"):
        environment.step(np.zeros(1, np.float32))
