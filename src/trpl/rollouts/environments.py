"""Gymnasium environments: made, checked, stepped with guards, and replayable.

Every failure of an environment becomes one exception that names the environment, the episode and the step. An
`Environment` also records how its current episode came about (the state of its generator at the last reset and the
actions since), so that a run can be resumed in the middle of an episode, for any simulator, by replaying it.
"""

import importlib
import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.wrappers import OrderEnforcing, TimeLimit

from trpl.errors import FaultyEnvironmentError, ReplayError, UnknownEnvironmentError
from trpl.messages import closest
from trpl.policies.heads import GaussianHead
from trpl.rollouts.lean import lean_step
from trpl.rollouts.spaces import head_of, observing
from trpl.rollouts.task_spec import Task, as_task, is_local

REGISTERING_PACKAGES = {"MiniGrid-": "minigrid", "BabyAI-": "minigrid"}  # by the prefix of a task's name


def make_environment(env_id: str, /, *, render_mode: str | None = None, **kwargs: Any) -> gym.Env:
    """Make a Gymnasium environment and check its spaces.

    Gymnasium's passive checker is off: `Environment` does the checks that matter at a tenth of the cost. The notice
    that a v4 task has a successor is silenced, since published results use v4, and so is MuJoCo's about the v4 models'
    XML, which it would also append to a log file in the working directory.

    Args:
        env_id: The name of the environment.
        render_mode: See `gymnasium.make`.
        **kwargs: The environment's own arguments.

    Returns:
        The environment.

    Raises:
        UnknownEnvironmentError: There is no environment of that name.
        UnsupportedSpaceError: Its observations or actions are not vectors.
        FaultyEnvironmentError: It cannot be made.
    """
    if render_mode is not None:  # not every environment has this argument
        kwargs["render_mode"] = render_mode
    with warnings.catch_warnings(), _quiet_mujoco():
        warnings.filterwarnings("ignore", message=".*is out of date.*")
        try:
            _import_registering_package(env_id)
            env = gym.make(env_id, disable_env_checker=True, **kwargs)
        except (gym.error.UnregisteredEnv, gym.error.DeprecatedEnv, ModuleNotFoundError) as error:
            raise UnknownEnvironmentError(_unknown(env_id, error)) from error
        except (Exception, SystemExit) as error:
            raise FaultyEnvironmentError(f"{env_id} could not be made: {type(error).__name__}: {error}") from error
    observing(env.observation_space, env_id=env_id)
    return env


def _import_registering_package(env_id: str) -> None:
    """Import the package that registers tasks of this name, if they are not registered yet."""
    package = next((package for start, package in REGISTERING_PACKAGES.items() if env_id.startswith(start)), None)
    if package is not None and env_id not in gym.registry:
        importlib.import_module(package)


def _without_version(env_id: str) -> str:
    return env_id.rpartition("-v")[0] or env_id


def _unknown(env_id: str, error: Exception) -> str:
    """Say that there is no such environment, and suggest the nearest: in another version, else by spelling."""
    module, _, name = env_id.rpartition(":")
    if isinstance(error, ModuleNotFoundError):
        missing = error.name or getattr(error.__context__, "name", None) or module
        if module.split(".")[0] == missing.split(".")[0]:
            return f"there is no module {module!r} to find {name!r} in: install it, or put its folder on PYTHONPATH"
        return f"{env_id} needs the module {missing!r}, which is not installed"
    words = {known.lower(): known for known in gym.registry if not is_local(known)}
    stem = _without_version(name.lower())
    versions = [known for known in words if _without_version(known) == stem]
    nearest = closest(name.lower(), versions or words)
    if nearest is not None and closest(stem, [_without_version(nearest)]) is None:
        nearest = None  # similar only in the version
    prefix = f"{module}:" if module else ""
    hint = "" if nearest is None else f"; did you mean {prefix + words[nearest]!r}?"
    own = "your own is named with the module that registers it, module:Name-v0"
    if is_local(env_id):
        hint, own = "", "another process handed it over as an object or a callable: in Python, trpl.load(RUN, env=it)"
    return f"there is no environment {env_id!r}{hint} ({own})"


@contextmanager
def _quiet_mujoco() -> Iterator[None]:
    """Turn MuJoCo's warnings while a model is compiled into Python warnings, except one about Gymnasium's models."""
    if find_spec("mujoco") is None:
        yield
        return
    import mujoco

    def report(message: str) -> None:
        if "settotalmass" not in message:
            warnings.warn(f"MuJoCo: {message}", stacklevel=2)

    before = mujoco.get_mju_user_warning()  # type: ignore[attr-defined]
    mujoco.set_mju_user_warning(report)  # type: ignore[attr-defined]
    try:
        yield
    finally:
        mujoco.set_mju_user_warning(before)  # type: ignore[attr-defined]


def _direct_step(env: gym.Env) -> tuple[Callable[[np.ndarray], tuple], int | None]:
    """Return the fastest step function of the environment, and the time limit that the caller must then enforce.

    The wrappers that `gym.make` adds to every environment count steps and check the order of calls, which `Environment`
    does too; bypassing them saves a few microseconds a step. Any other wrapper stays in place.
    """
    limit, inner = None, env
    while isinstance(inner, TimeLimit | OrderEnforcing):
        if isinstance(inner, TimeLimit):
            limit = inner._max_episode_steps if limit is None else min(limit, inner._max_episode_steps)
        inner = inner.env
    return (env.step, None) if isinstance(inner, gym.Wrapper) else (inner.step, limit)


def _as_json(state: Any) -> Any:
    """Convert a bit generator's state for JSON: all but PCG64 keep arrays in it. The generators take lists for them."""
    if isinstance(state, Mapping):
        return {name: _as_json(value) for name, value in state.items()}
    return state.tolist() if isinstance(state, np.ndarray) else state


class Environment:
    """One environment: `begin` starts an episode, `step` continues it, `state` and `restore` carry it over a restart.

    Actions are a policy's, vectors of floats, which its `head` converts to the environment's; with `own_actions` they
    are the environment's own. `options` are arguments of `make_environment` beside the task's.
    """

    def __init__(self, task: str | Task, *, seed: int, index: int = 0, own_actions: bool = False, **options: Any):
        task = as_task(task)
        self.env_id, self.index = task.env_id, index
        self.gym_env = make_environment(self.env_id, **{**task.kwargs, **options})
        self.observation_size, self._flatten = observing(self.gym_env.observation_space, env_id=self.env_id)
        space = self.gym_env.action_space
        self.head = head_of(space, task)
        self.action_size = self.head.action_size
        self.episode = self.num_steps = 0
        self._shape, self._action_shape = (self.observation_size,), (self.action_size,)
        self._action_dtype = space.dtype if isinstance(space, gym.spaces.Box) else None  # None: not a vector of floats
        is_raw = isinstance(self.head, GaussianHead) and self.head.actions is None
        self._take = None if is_raw else self.head.take
        if own_actions:
            self._take = None if self._action_dtype is None else np.asarray
        self._step, self.time_limit = _direct_step(self.gym_env)
        self._lean = None if self.time_limit is None else lean_step(self.gym_env.unwrapped)
        self._taken: list[np.ndarray] = []
        self._generator_state: dict[str, Any] | None = None
        self._guarded_reset(seed=seed)  # seeds the generator; episodes then draw from it

    def begin(self, *, seed: int | None = None) -> np.ndarray:
        """Start the next episode.

        Args:
            seed: A seed for the generator, which continues by default.

        Returns:
            The first observation (float64).
        """
        self.episode += 1
        self.num_steps = 0
        self._taken = []
        self._generator_state = None if seed is not None else self._read_generator()
        return self._guarded_reset(seed=seed)

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool]:
        """Take a step.

        Args:
            action: The action; it is kept, so do not modify it.

        Returns:
            Observation (float64), reward, terminated, truncated.

        Raises:
            FaultyEnvironmentError: The environment raised, or returned a non-finite number.
        """
        self.num_steps += 1
        taken = action
        if self._take is not None:
            action = self._take(action)
        try:
            if self._lean is not None and action.dtype == self._action_dtype and action.shape == self._action_shape:
                observation, reward, terminated = self._lean(action)
                if math.isfinite(observation.dot(observation) + reward):
                    self._taken.append(taken)
                    return observation, reward, terminated, self.num_steps == self.time_limit
                truncated = False
            else:
                own = action if self._action_dtype is None else action.astype(self._action_dtype)
                observation, reward, terminated, truncated, _ = self._step(own)
        except (Exception, SystemExit) as error:
            raise self._explained("step", error, wanted="observation, reward, terminated, truncated, info") from error
        if self.num_steps == self.time_limit:
            truncated = True
        self._taken.append(taken)
        try:
            if math.isfinite(reward):
                return self._checked(observation), float(reward), terminated, truncated
        except (TypeError, OverflowError):
            pass
        raise self._fault(f"reward is {reward!r}, not a finite number")

    def state(self) -> tuple[np.ndarray, dict[str, Any]]:
        """Describe how the current episode came about, for `restore`.

        Returns:
            The actions taken [steps, act], and metadata that JSON can hold.

        Raises:
            ReplayError: The environment has no NumPy generator, so its episodes cannot be replayed.
        """
        if self._generator_state is None:
            raise ReplayError(
                f"{self.env_id} has no NumPy generator at env.unwrapped.np_random, so its episodes cannot be replayed"
                " and a run could not be resumed; draw random numbers from the np_random of gymnasium.Env"
            )
        actions = np.array(self._taken, dtype=np.float32).reshape(self.num_steps, self.action_size)
        return actions, {"generator": _as_json(self._generator_state), "episode": self.episode}

    def restore(self, actions: np.ndarray, meta: Mapping[str, Any], *, observation: np.ndarray) -> None:
        """Replay an episode, and check that it leads to the same observation, bit for bit.

        Args:
            actions: The actions taken [steps, act].
            meta: The metadata of `state`.
            observation: The last observation.

        Raises:
            ReplayError: The replay leads to another observation.
        """
        self.gym_env.unwrapped.np_random.bit_generator.state = dict(meta["generator"])
        self.episode = int(meta["episode"]) - 1
        reached = self.begin()
        for action in actions:
            reached, *_ = self.step(action)
        if reached.tobytes() != np.asarray(observation, dtype=np.float64).tobytes():
            raise ReplayError(
                f"{self.where()}: the same actions led to another observation than before, so the environment is not"
                " deterministic given its generator (or its version changed) and the run cannot be resumed exactly"
            )

    def close(self) -> None:
        self.gym_env.close()

    def _read_generator(self) -> dict[str, Any] | None:
        generator = getattr(self.gym_env.unwrapped, "np_random", None)
        return dict(generator.bit_generator.state) if isinstance(generator, np.random.Generator) else None

    def _guarded_reset(self, *, seed: int | None) -> np.ndarray:
        try:
            observation, _ = self.gym_env.reset(seed=seed)
        except (Exception, SystemExit) as error:
            raise self._explained("reset", error, wanted="observation, info") from error
        return self._checked(observation)

    def _checked(self, observation: Any) -> np.ndarray:
        try:
            if self._flatten is not None:
                observation = self._flatten(observation)
            vector = np.array(observation, dtype=np.float64)  # a copy: some environments write into one array for ever
        except (TypeError, ValueError, LookupError) as error:
            raise self._fault(f"observation is a {type(observation).__name__}, not an array of numbers") from error
        if vector.shape != self._shape:
            raise self._fault(f"observation has shape {vector.shape}, its space has {self._shape}")
        if not math.isfinite(vector.dot(vector)):  # one call; isfinite().all() is two slower ones
            broken = np.flatnonzero(~(np.abs(vector) < 1e150))
            raise self._fault(f"observation is not finite at index {broken.tolist()}")
        return vector

    def position(self) -> tuple[int, int]:
        """Return the environment's position, for time-outs.

        Returns:
            Episode and step, which change with every call of `begin` and `step`.
        """
        return self.episode, self.num_steps

    def where(self) -> str:
        """Describe the environment's position, for messages.

        Returns:
            Its name, number, episode and step.
        """
        return f"{self.env_id} (environment {self.index}), episode {self.episode}, step {self.num_steps}"

    def _explained(self, call: str, error: BaseException, *, wanted: str) -> FaultyEnvironmentError:
        """Make an error that tells a malformed result, raised in this module, from an exception of the environment."""
        if isinstance(error, FaultyEnvironmentError):  # a time-out
            return error
        if error.__traceback__ is not None and error.__traceback__.tb_next is None:
            return self._fault(f"{call} did not return ({wanted}): {error}")
        return self._fault(f"{call} raised {type(error).__name__}: {error}")

    def _fault(self, what: str) -> FaultyEnvironmentError:
        return FaultyEnvironmentError(f"{self.where()}: {what}")
