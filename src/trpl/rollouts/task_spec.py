"""A task as a run wants it: the environment's name and arguments, and how actions reach it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import gymnasium as gym

LOCAL = "local"  # the name space of environments that only this process knows


class Task(NamedTuple):
    """Name an environment and what is done to its actions.

    Args:
        env_id: Gymnasium's name of the environment.
        kwargs: Its own arguments.
        units: "raw", or "box": a Gaussian's actions are in units of the action box.
        clip: Whether a Gaussian's actions are clipped to the box.
        policy: What acts in a box: "gaussian", "squashed" or "beta".
    """

    env_id: str
    kwargs: Mapping[str, Any] = {}
    units: str = "raw"
    clip: bool = False
    policy: str = "gaussian"


def as_task(task: str | Task) -> Task:
    """Let a name stand for the task with its defaults."""
    return Task(task) if isinstance(task, str) else task


def register_local(env: gym.Env | Callable[..., gym.Env]) -> str:
    """Give an environment object, or a callable that makes one, a name that this process can make it by.

    Args:
        env: The callable, or the object, which is copied each time: training and evaluation need one each.

    Returns:
        The name.

    Raises:
        TypeError: It is neither.
    """
    if isinstance(env, gym.Env):
        name, entry = type(env.unwrapped).__name__, lambda **_: copy.deepcopy(env)
    elif callable(env):
        name, entry = getattr(env, "__name__", type(env).__name__), env
    else:
        raise TypeError(f"an environment is a name, a gymnasium.Env or a callable that makes one, not {env!r}")
    name = "".join(letter for letter in name if letter.isalnum() or letter == "_") or "Environment"
    number = sum(known.startswith(f"{LOCAL}/{name}-v") for known in gym.registry)
    env_id = f"{LOCAL}/{name}-v{number}"
    gym.register(env_id, entry)  # type: ignore[arg-type]
    return env_id
