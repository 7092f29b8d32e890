"""From a policy's actions to the environment's: in units of the action box, clipped to it, or as they are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

UNITS = ("raw", "box")
GAIN, OFFSET, LOW, HIGH = "action/gain", "action/offset", "action/low", "action/high"


class ActionMap(NamedTuple):
    """action = offset + gain · a, then held within low and high where they are given."""

    gain: np.ndarray
    offset: np.ndarray
    low: np.ndarray | None = None
    high: np.ndarray | None = None

    def __call__(self, action: np.ndarray) -> np.ndarray:
        """Give the environment's action for the policy's; the type stays."""
        found = (self.offset + self.gain * action).astype(action.dtype)
        return found if self.low is None else np.clip(found, self.low, self.high)

    def arrays(self) -> dict[str, np.ndarray]:
        """Give what a checkpoint keeps of it."""
        limits = {} if self.low is None or self.high is None else {LOW: self.low, HIGH: self.high}
        return {GAIN: self.gain, OFFSET: self.offset, **limits}


def action_map(low: np.ndarray, high: np.ndarray, *, units: str, clip: bool) -> ActionMap | None:
    """Make the map for a box; None where actions go to the environment as they are.

    In units "box" the middle of the box is 0 and its ends are ±1; a dimension without an end on both sides stays raw.
    """
    if units == "raw" and not clip:
        return None
    low, high = np.asarray(low, np.float32), np.asarray(high, np.float32)
    bounded = np.isfinite(low) & np.isfinite(high) & (units == "box")
    with np.errstate(invalid="ignore", over="ignore"):
        gain = np.where(bounded, (high - low) / 2, 1.0).astype(np.float32)
        offset = np.where(bounded, low + (high - low) / 2, 0.0).astype(np.float32)
    return ActionMap(gain, offset, low if clip else None, high if clip else None)


def take_action_map(arrays: dict[str, Any]) -> ActionMap | None:
    """Take the map out of a checkpoint's arrays; checkpoints of raw actions have none."""
    found = {name: arrays.pop(name, None) for name in (GAIN, OFFSET, LOW, HIGH)}
    return None if found[GAIN] is None else ActionMap(*found.values())


def map_problem(arrays: Mapping[str, np.ndarray], action_size: int) -> str | None:
    """Say what keeps arrays from being a map."""
    present = [name for name in (GAIN, OFFSET, LOW, HIGH) if name in arrays]
    if len({name in arrays for name in (GAIN, OFFSET)}) == 2 or len({name in arrays for name in (LOW, HIGH)}) == 2:
        return f"it has only part of its actions' transformation: {', '.join(present)}"
    for name in present:
        if arrays[name].dtype.kind != "f" or arrays[name].shape != (action_size,) or np.isnan(arrays[name]).any():
            return f"{name} is not {action_size} numbers"
    return None
