"""Runs that take a second: a point to be moved to the origin, small networks, few steps."""

import gymnasium as gym
import numpy as np

from trpl.presets import preset

POINT = "test/Point-v0"


class Point(gym.Env):
    """x ← x + a/2 in the plane, reward −‖x‖², ten steps; the start is random. The best policy is a = −2x: return
    −‖x₀‖².
    """

    observation_space = gym.spaces.Box(-np.inf, np.inf, (2,))
    action_space = gym.spaces.Box(-1.0, 1.0, (2,))

    def __init__(self, *, render_mode=None):
        self.render_mode = render_mode

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.x, self.steps = self.np_random.normal(size=2), 0
        return self.x.copy(), {}

    def step(self, action):
        reward = -float(self.x @ self.x)
        self.x, self.steps = self.x + np.asarray(action, float) / 2, self.steps + 1
        return self.x.copy(), reward, False, self.steps == 10, {}


def register():
    if POINT not in gym.registry:
        gym.register(POINT, Point)


def config(method="ppo-m", env_id=POINT, **overrides):
    values = {
        "rollout_size": 32,
        "total_steps": 32 * 8,
        "minibatch_size": 16,
        "value_epochs": 1,
        "hidden_sizes": (4,),
        "hidden_sizes_vf": (4,),
        "eval_every": 3,
        "eval_episodes": 1,
        "checkpoint_every": 3,
        "clip_actions": False,
    }
    if method != "trpo":
        values["policy_epochs"] = 1
    return preset(method, env_id, **(values | overrides))
