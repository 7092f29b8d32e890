"""Tiny environments with known answers, and the examples as modules."""

import importlib.util
from pathlib import Path

import gymnasium
import numpy as np
from gymnasium import spaces


def example(name):
    """A file of `examples/` as a module."""
    file = Path(__file__).parents[2] / "examples" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"examples_{name}", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Target(gymnasium.Env):
    """Episodes of one step; reward −‖a − target‖², so the best mean action is the target."""

    observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)

    def __init__(self, target: float = 0.6, action_size: int = 2, bound: float = 2.0) -> None:
        self.action_space = spaces.Box(-bound, bound, (action_size,), np.float32)
        self.target, self.seen = target, []

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.observe(), {}

    def observe(self):
        return self.np_random.uniform(-1.0, 1.0, 2).astype(np.float32)

    def step(self, action):
        self.seen.append(np.array(action))
        return self.observe(), -float(np.square(action - self.target).sum()), True, False, {}


class Cameras(Target):
    """The same with a dictionary of observations."""

    observation_space = spaces.Dict(
        {"joints": spaces.Box(-1.0, 1.0, (3,), np.float32), "goal": spaces.Box(-1.0, 1.0, (2,), np.float32)}
    )

    def observe(self):
        return {
            "joints": self.np_random.uniform(-1.0, 1.0, 3).astype(np.float32),
            "goal": self.np_random.uniform(-1.0, 1.0, 2).astype(np.float32),
        }
