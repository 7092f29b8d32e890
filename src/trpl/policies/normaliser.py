"""The observation normaliser as it acts, frozen: (x − shift)/scale, clipped, float32."""

import numpy as np


def standardise(x: np.ndarray, shift: np.ndarray, scale: np.ndarray, clip: float | None) -> np.ndarray:
    """Normalise observations [..., obs]; the difference is taken in float64, where the statistics are."""
    return clipped((x - shift) / scale, clip)


def clipped(normalised: np.ndarray, clip: float | None) -> np.ndarray:
    """Hold normalised observations within ± clip, where there is one, and round them to float32."""
    if clip is not None:
        normalised = np.minimum(np.maximum(normalised, -clip), clip)
    return normalised.astype(np.float32)
