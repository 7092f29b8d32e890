"""Tiny environments with known answers, and environments that misbehave."""

import gymnasium as gym
import numpy as np

from trpl.rollouts.evaluation import EVALUATION_STREAM
from trpl.rollouts.seeds import derived_seed


class Counter(gym.Env):
    """Observation (steps taken, a number drawn at reset); reward = steps taken; ends as told."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (2,))
    action_space = gym.spaces.Box(-1.0, 1.0, (1,))

    def __init__(self, *, terminate_at=None, truncate_at=None, render_mode=None):
        self.terminate_at, self.truncate_at, self.render_mode = terminate_at, truncate_at, render_mode

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps, self.tag = 0, self.np_random.normal()
        return self._observation(), {}

    def step(self, action):
        self.steps += 1
        return (
            self._observation(),
            float(self.steps),
            self.steps == self.terminate_at,
            self.steps == self.truncate_at,
            {},
        )

    def _observation(self):
        return np.array([self.steps, self.tag])


class Drift(Counter):
    """Where one is depends on the actions and on noise drawn at every step."""

    def step(self, action):
        self.tag += float(action[0]) + 0.1 * self.np_random.normal()
        return super().step(action)


class Broken(Counter):
    """Fails in the way it is told to, at the third step of the second episode."""

    def __init__(self, *, fault, render_mode=None):
        super().__init__(terminate_at=5)
        self.fault, self.episodes = fault, -1  # the first reset only seeds

    def reset(self, *, seed=None, options=None):
        self.episodes += 1
        return super().reset(seed=seed)

    def step(self, action):
        observation, reward, terminated, truncated, info = super().step(action)
        if self.episodes == 2 and self.steps == 3:
            match self.fault:
                case "raises":
                    raise ZeroDivisionError("the motor is off")
                case "nan observation":
                    observation[1] = np.nan
                case "inf observation":
                    observation[0] = np.inf
                case "nan reward":
                    reward = np.nan
                case "huge reward":
                    reward = 10**400
                case "no reward":
                    reward = None
                case "shape":
                    observation = observation[:1]
                case "type":
                    observation = {"position": observation}
        return observation, reward, terminated, truncated, info


class Forgetful(Drift):
    """Not deterministic: noise from a generator that is not its own."""

    hidden_generator = np.random.default_rng(0)

    def step(self, action):
        self.tag += self.hidden_generator.normal()
        return super().step(action)


class Meddles(Counter):
    """Writes into the action it is given."""

    def step(self, action):
        action[:] = 7.0
        return super().step(action)


class Reuses(Counter):
    """Writes every observation into the same array."""

    def __init__(self, **options):
        super().__init__(**options)
        self.array = np.zeros(2)

    def _observation(self):
        self.array[:] = super()._observation()
        return self.array


class Falls(Counter):
    """Falls after 1 to 19 steps, drawn at reset, or not before the time limit of 20, in a third of the episodes."""

    def reset(self, *, seed=None, options=None):
        found = super().reset(seed=seed)
        self.terminate_at = fall(self.np_random)
        return found


def fall(generator):
    return int(generator.integers(1, 30))


def falls_after(seed, epoch, number):
    """When the episode of this number falls, or is cut by its own time limit, in an evaluation."""
    generator = np.random.default_rng(derived_seed(seed, epoch, number, EVALUATION_STREAM))
    generator.normal()  # the tag
    return min(fall(generator), 20)


def register() -> None:
    if "test/Falls-v0" not in gym.registry:
        gym.register("test/Falls-v0", Falls, max_episode_steps=20)
    for name, entry in {
        "Terminates": lambda **kw: Counter(terminate_at=4, **kw),
        "Truncates": lambda **kw: Counter(truncate_at=4, **kw),
        "Both": lambda **kw: Counter(terminate_at=4, truncate_at=4, **kw),
        "OneStep": lambda **kw: Counter(terminate_at=1, **kw),
        "Endless": Counter,
        "Drift": lambda **kw: Drift(truncate_at=50, **kw),
        "Forgetful": lambda **kw: Forgetful(truncate_at=50, **kw),
        "Meddles": Meddles,
        "Reuses": lambda **kw: Reuses(truncate_at=4, **kw),
    }.items():
        if f"test/{name}-v0" not in gym.registry:
            gym.register(f"test/{name}-v0", entry)


class LinearActor:
    """mean = x·weight, std as given; counts its calls."""

    def __init__(self, obs_size, action_size, *, std=0.5, seed=0):
        generator = np.random.default_rng(seed)
        self.weight = generator.normal(size=(obs_size, action_size)).astype(np.float32)
        self.std = np.float32(std)

    def mode(self, observations):
        return observations @ self.weight

    def noise(self, rng, num_steps, states):
        return rng.standard_normal((num_steps, *states, self.weight.shape[1]), dtype=np.float32)

    def sample(self, observations, noise):
        return self.mode(observations) + self.std * noise

    def prepared(self, noise):
        return self.sample, noise
