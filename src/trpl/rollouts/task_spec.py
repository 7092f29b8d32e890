"""The description of a task: the environment's name and arguments, and the treatment of actions."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import gymnasium as gym

LOCAL = "local"  # the namespace of environments registered only in this process


class Task(NamedTuple):
    """An environment and the treatment of its actions.

    Args:
        env_id: The environment's Gymnasium name.
        kwargs: Its own arguments.
        units: "raw", or "box": a Gaussian's actions are in units of the action box.
        clip: Whether a Gaussian's actions are clipped to the box.
        policy: The policy for a box: "gaussian", "squashed" or "beta".
    """

    env_id: str
    kwargs: Mapping[str, Any] = {}
    units: str = "raw"
    clip: bool = False
    policy: str = "gaussian"


def as_task(task: str | Task) -> Task:
    """Convert a name to the task with its defaults."""
    return Task(task) if isinstance(task, str) else task


def is_local(env_id: str) -> bool:
    """Tell whether an environment was handed over as an object or a callable, which only one process knows.

    Args:
        env_id: Its name.

    Returns:
        Whether `register_local` made the name.
    """
    return env_id.startswith(f"{LOCAL}/")


def register_local(env: gym.Env | Callable[..., gym.Env], *, env_id: str | None = None) -> str:
    """Register an environment object, or a callable that makes one, for this process.

    Args:
        env: The callable, or the object, which is copied each time: training and evaluation need one each.
        env_id: The name under which another process knew it; a new one by default.

    Returns:
        The name.

    Raises:
        TypeError: It is neither.
    """
    if isinstance(env, gym.Env):
        name, entry = type(env.unwrapped).__name__, _copies(env)
    elif callable(env):
        name, entry = getattr(env, "__name__", type(env).__name__), env
    else:
        raise TypeError(f"an environment is a name, a gymnasium.Env or a callable that makes one, not {env!r}")
    if env_id is None:
        name = "".join(letter for letter in name if letter.isalnum() or letter == "_") or "Environment"
        number = sum(known.startswith(f"{LOCAL}/{name}-v") for known in gym.registry)
        env_id = f"{LOCAL}/{name}-v{number}"
    gym.registry.pop(env_id, None)
    gym.register(env_id, entry)  # type: ignore[arg-type]
    return env_id


def _copies(env: gym.Env) -> Callable[..., gym.Env]:
    """Make a callable that copies an environment, and has no arguments to give it."""

    def copied(*, render_mode: str | None = None, **arguments: Any) -> gym.Env:
        if arguments:
            words = ", ".join(arguments)
            raise ValueError(f"the environment was handed over as an object: give {words} when you make that object")
        return copy.deepcopy(env)

    return copied
