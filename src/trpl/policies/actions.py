"""The map from a policy's actions to those of a box: scaled, squashed, clipped, or raw."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

UNITS = ("raw", "box")
GAIN, OFFSET, LOW, HIGH = "action/gain", "action/offset", "action/low", "action/high"
SQUASH = "action/squash"  # all ones if actions are squashed, else absent


class ActionMap(NamedTuple):
    """action = offset + gain · a, clipped to low and high if given; tanh(a) in place of a with `squash`."""

    gain: np.ndarray
    offset: np.ndarray
    low: np.ndarray | None = None
    high: np.ndarray | None = None
    squash: bool = False

    def __call__(self, action: np.ndarray) -> np.ndarray:
        """Map the policy's action to the environment's, in the same dtype."""
        if self.squash:
            action = np.tanh(action)
        found = (self.offset + self.gain * action).astype(action.dtype)
        return found if self.low is None else np.clip(found, self.low, self.high)

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the arrays for a checkpoint."""
        limits = {} if self.low is None or self.high is None else {LOW: self.low, HIGH: self.high}
        squash = {SQUASH: np.ones_like(self.gain)} if self.squash else {}
        return {GAIN: self.gain, OFFSET: self.offset, **limits, **squash}

    def to_json(self) -> dict[str, Any]:
        """Return the values for `from_json`."""
        vectors = {name: getattr(self, name) for name in ("gain", "offset", "low", "high")}
        return {**{name: None if x is None else x.tolist() for name, x in vectors.items()}, "squash": self.squash}

    @classmethod
    def from_json(cls, values: Any) -> ActionMap | None:
        """Read the output of `to_json`; None stays None.

        Raises:
            ValueError: The values are malformed.
        """
        if values is None:
            return None
        given = [values[name] for name in ("gain", "offset", "low", "high")]
        gain, offset, low, high = (None if x is None else np.array(x, np.float32) for x in given)
        if gain is None or offset is None or len({x.shape for x in (gain, offset, low, high) if x is not None}) != 1:
            raise ValueError("its actions' transformation is not made of vectors of one size")
        return cls(gain, offset, low, high, squash=bool(values["squash"]))


def action_map(low: np.ndarray, high: np.ndarray, *, units: str, clip: bool) -> ActionMap | None:
    """Make the map for a box; None for raw actions.

    In units "box" the middle of the box is 0 and its ends are ±1; a dimension without two finite ends stays raw.
    """
    if units == "raw" and not clip:
        return None
    low, high = np.asarray(low, np.float32), np.asarray(high, np.float32)
    bounded = np.isfinite(low) & np.isfinite(high) & (units == "box")
    with np.errstate(invalid="ignore", over="ignore"):
        gain = np.where(bounded, (high - low) / 2, 1.0).astype(np.float32)
        offset = np.where(bounded, low + (high - low) / 2, 0.0).astype(np.float32)
    return ActionMap(gain, offset, low if clip else None, high if clip else None)


def squashed_map(low: np.ndarray, high: np.ndarray) -> ActionMap:
    """Make the map of all numbers into a bounded box: its middle, and tanh times half its width."""
    low, high = np.asarray(low, np.float32), np.asarray(high, np.float32)
    half = (high - low) / 2
    return ActionMap(half, low + half, low, high, squash=True)


def unit_map(low: np.ndarray, high: np.ndarray) -> ActionMap:
    """Make the map of numbers between 0 and 1 into a bounded box."""
    low, high = np.asarray(low, np.float32), np.asarray(high, np.float32)
    return ActionMap(high - low, low, low, high)


def stored_map(arrays: Mapping[str, Any]) -> ActionMap | None:
    """Find the map among a checkpoint's arrays; None for raw actions."""
    found: list[Any] = [arrays.get(name) for name in (GAIN, OFFSET, LOW, HIGH)]
    return None if found[0] is None else ActionMap(*found, squash=SQUASH in arrays)


def map_problem(arrays: Mapping[str, np.ndarray], action_size: int) -> str | None:
    """Describe why arrays are not a valid map; None if they are."""
    present = [name for name in (GAIN, OFFSET, LOW, HIGH, SQUASH) if name in arrays]
    partly = len({name in arrays for name in (GAIN, OFFSET)}) == 2 or len({name in arrays for name in (LOW, HIGH)}) == 2
    if partly or present == [SQUASH]:
        return f"it has only part of its actions' transformation: {', '.join(present)}"
    for name in present:
        if arrays[name].dtype.kind != "f" or arrays[name].shape != (action_size,) or np.isnan(arrays[name]).any():
            return f"{name} is not {action_size} numbers"
    return None
