"""A frozen observation normaliser: (x − shift)/scale, clipped, float32."""

import numpy as np


def standardise(x: np.ndarray, shift: np.ndarray, scale: np.ndarray, clip: float | None) -> np.ndarray:
    """Normalise observations [..., obs] to network inputs, in float64 until the result is rounded."""
    return clipped((x - shift) / scale, clip)


def clipped(normalised: np.ndarray, clip: float | None) -> np.ndarray:
    """Clip normalised observations or rewards to ± clip, unless that is None, and round them to float32."""
    if clip is not None:
        normalised = np.minimum(np.maximum(normalised, -clip), clip)
    return normalised.astype(np.float32)
