"""Environments for the stress programs and their tests: a point that is quick to step, and others that misbehave.

`trpl train kl troubles:point-v0` with this folder on PYTHONPATH. A troubled one is the point until the third step of
its sixth episode.
"""

import ctypes
import time

import gymnasium as gym
import numpy as np

FAULTS = (
    "raises", "exits", "nan-observation", "inf-observation", "nan-reward", "inf-reward", "no-reward",
    "wrong-shape", "wrong-type", "too-few-values", "hangs", "hangs-asleep", "hangs-in-c", "hangs-in-reset",
)  # fmt: skip


class Point(gym.Env):
    """x ← x + a/2 in the plane, reward −‖x‖², ten steps; the start is random."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (2,))
    action_space = gym.spaces.Box(-1.0, 1.0, (2,))

    def __init__(self, *, render_mode=None, num_steps=10):
        self.render_mode, self.num_steps = render_mode, num_steps

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.x, self.steps = self.np_random.normal(size=2), 0
        return self.x.copy(), {}

    def step(self, action):
        reward = -float(self.x @ self.x)
        self.x, self.steps = 0.9 * self.x + np.asarray(action, float) / 2, self.steps + 1
        return self.x.copy(), reward, False, self.steps == self.num_steps, {}


class Troubled(Point):
    """A point that fails in the way it is told to."""

    def __init__(self, *, fault, render_mode=None):
        super().__init__(render_mode=render_mode)
        self.fault, self.episodes = fault, -1  # the first reset only seeds

    def reset(self, *, seed=None, options=None):
        self.episodes += 1
        if self.fault == "hangs-in-reset" and self.episodes == 6:
            time.sleep(3600)
        return super().reset(seed=seed)

    def step(self, action):
        observation, reward, terminated, truncated, info = super().step(action)
        if self.episodes != 6 or self.steps != 3:
            return observation, reward, terminated, truncated, info
        match self.fault:
            case "raises":
                raise ZeroDivisionError("the motor is off")
            case "nan-observation":
                observation[1] = np.nan
            case "inf-observation":
                observation[0] = -np.inf
            case "nan-reward":
                reward = np.nan
            case "inf-reward":
                reward = np.inf
            case "no-reward":
                reward = None
            case "wrong-shape":
                observation = observation[:1]
            case "wrong-type":
                observation = {"position": observation}
            case "too-few-values":
                return observation, reward, terminated, info
            case "exits":
                raise SystemExit(0)
            case "hangs":
                while True:
                    pass
            case "hangs-asleep":
                time.sleep(3600)
            case "hangs-in-c":
                ctypes.PyDLL(None).sleep(3600)  # in C and with the interpreter's lock held, as an extension would be
        return observation, reward, terminated, truncated, info


def register():
    gym.register("point-v0", Point)
    gym.register("one-step-v0", lambda **kw: Point(num_steps=1, **kw))
    for fault in FAULTS:
        gym.register(f"{fault}-v0", lambda fault=fault, **kw: Troubled(fault=fault, **kw))


if "point-v0" not in gym.registry:
    register()
