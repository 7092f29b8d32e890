"""Gymnasium's spaces: the head for an action space, and the vector for an observation.

`HEADS` is the registry of heads by action space.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from trpl.errors import UnsupportedSpaceError
from trpl.policies.actions import action_map, squashed_map, unit_map
from trpl.policies.heads import BernoulliHead, BetaHead, CategoricalHead, GaussianHead, Head, ProductHead
from trpl.rollouts.task_spec import Task

LARGEST_OBSERVATION = 10_000  # numbers: larger observations are usually images, for other networks
SUPPORTED = (
    "supported are actions that are Box (vectors of floats), Discrete, MultiDiscrete, MultiBinary, or a Tuple or Dict"
    f" of these, and observations that Gymnasium flattens to at most {LARGEST_OBSERVATION} numbers"
)


def head_of(space: gym.Space, task: Task) -> Head:
    """Find the head for an action space.

    Raises:
        UnsupportedSpaceError: No policy supports the space, or not the task's.
    """
    found = _head(space, task)
    if task.policy != "gaussian" and not _has_box(space):
        raise UnsupportedSpaceError(
            f"{task.env_id}: policy {task.policy!r} is for bounded Box actions, and its action space is {space};"
            f" without the setting its policy is a {found.words}"
        )
    return found


def _head(space: gym.Space, task: Task) -> Head:
    make = next((make for kind, make in HEADS.items() if isinstance(space, kind)), None)
    if make is None:
        raise refused(task.env_id, f"action space is {type(space).__name__}")
    return make(space, task)


def _has_box(space: gym.Space) -> bool:
    if isinstance(space, spaces.Tuple | spaces.Dict):
        return any(map(_has_box, _members(space)[1]))
    return isinstance(space, spaces.Box)


def _box(space: spaces.Box, task: Task) -> Head:
    if len(space.shape) == 3:
        raise refused(task.env_id, f"action space has shape {space.shape}, which looks like images")
    if len(space.shape) != 1 or space.shape[0] == 0:
        raise refused(task.env_id, f"action space has shape {space.shape}")
    if not np.issubdtype(space.dtype, np.floating):
        raise refused(task.env_id, f"action space has dtype {space.dtype}")
    size = int(space.shape[0])
    if task.policy == "gaussian":
        return GaussianHead(size, actions=action_map(space.low, space.high, units=task.units, clip=task.clip))
    if not (np.isfinite(space.low).all() and np.isfinite(space.high).all()):
        raise UnsupportedSpaceError(
            f"{task.env_id}: policy {task.policy!r} needs a bounded action space, and this one is"
            f" {space}; policy 'gaussian' supports it"
        )
    if task.policy == "beta":
        return BetaHead(size, actions=unit_map(space.low, space.high))
    return GaussianHead(size, actions=squashed_map(space.low, space.high))


def _multi_discrete(space: spaces.MultiDiscrete, task: Task) -> Head:
    sizes, starts = (tuple(int(n) for n in np.ravel(x)) for x in (space.nvec, space.start))
    return CategoricalHead(sizes, starts, tuple(space.nvec.shape))


def _composite(space: spaces.Tuple | spaces.Dict, task: Task) -> Head:
    names, members = _members(space)
    nested = [type(member).__name__ for member in members if isinstance(member, spaces.Tuple | spaces.Dict)]
    if nested or not members:
        raise refused(task.env_id, f"action space is a {type(space).__name__} {f'of a {nested[0]}' if nested else ''}")
    return ProductHead(tuple(_head(member, task) for member in members), names)


def _members(space: gym.Space) -> tuple[tuple[str, ...] | None, tuple[gym.Space, ...]]:
    if isinstance(space, spaces.Dict):
        return tuple(space.spaces), tuple(space.spaces.values())
    assert isinstance(space, spaces.Tuple)
    return None, tuple(space.spaces)


HEADS: Mapping[type[gym.Space], Callable[[Any, Task], Head]] = {
    spaces.Box: _box,
    spaces.Discrete: lambda space, task: CategoricalHead((int(space.n),), (int(space.start),)),
    spaces.MultiDiscrete: _multi_discrete,
    spaces.MultiBinary: lambda space, task: BernoulliHead(math.prod(space.shape), tuple(space.shape)),
    spaces.Tuple: _composite,
    spaces.Dict: _composite,
}


class Observing(NamedTuple):
    """The conversion of an observation to a vector: its size, and the function, None if it is a vector already."""

    size: int
    flatten: Callable[[Any], Any] | None


def observing(space: gym.Space, *, env_id: str) -> Observing:
    """Find the conversion of an observation to a vector, by Gymnasium's flattening: a class is one-hot.

    Text in a dictionary is left out, with a warning.
    """
    if isinstance(space, spaces.Box) and len(space.shape) == 1 and space.shape[0]:
        return Observing(int(space.shape[0]), None)
    kept = _without_text(space, env_id) if isinstance(space, spaces.Dict) else space
    size = _flat_size(kept)
    if size is None:
        raise refused(env_id, f"observation space is {type(space).__name__}")
    if not size:
        raise refused(env_id, f"observation space has shape {space.shape}")
    if size > LARGEST_OBSERVATION:
        raise refused(env_id, f"observation space has {size} numbers, which looks like images")
    if kept is space:
        return Observing(size, lambda observation: spaces.flatten(space, observation))
    names = tuple(kept.spaces)  # type: ignore[attr-defined]
    return Observing(size, lambda observation: spaces.flatten(kept, {name: observation[name] for name in names}))


def _without_text(space: spaces.Dict, env_id: str) -> spaces.Dict:
    """Leave out members without numbers."""
    kept = {name: member for name, member in space.spaces.items() if _flat_size(member) is not None}
    lost = [name for name in space.spaces if name not in kept]
    if not kept or not lost:
        return space
    warnings.warn(f"{env_id}: the policy does not see {', '.join(lost)}, which is not made of numbers", stacklevel=2)
    return spaces.Dict(kept)


def _flat_size(space: gym.Space) -> int | None:
    """Count the numbers of a flattened observation; None if Gymnasium cannot flatten it."""
    if isinstance(space, spaces.Text):
        return None
    try:
        flat = spaces.flatten_space(space)
    except (NotImplementedError, ValueError):
        return None
    return int(math.prod(flat.shape)) if isinstance(flat, spaces.Box) else None


def refused(env_id: str, what: str) -> UnsupportedSpaceError:
    """Make the error that says what is supported."""
    return UnsupportedSpaceError(f"{env_id}: {what.strip()}; {SUPPORTED}")
