"""The observation normaliser as it acts, frozen: (x − shift)/scale, clipped, float32."""

import numpy as np


def standardise(x: np.ndarray, shift: np.ndarray, scale: np.ndarray, clip: float | None) -> np.ndarray:
    """Normalise observations; the difference is taken in float64, where the statistics are.

    Args:
        x: Observations [..., obs].
        shift: What is subtracted.
        scale: What the difference is divided by.
        clip: The limit of the result; None for no limit.

    Returns:
        The observations as networks take them.
    """
    return clipped((x - shift) / scale, clip)


def clipped(normalised: np.ndarray, clip: float | None) -> np.ndarray:
    """Hold normalised observations within ± clip, and round them to float32.

    Args:
        normalised: The observations.
        clip: The limit; None for no limit.

    Returns:
        The observations as networks take them.
    """
    if clip is not None:
        normalised = np.minimum(np.maximum(normalised, -clip), clip)
    return normalised.astype(np.float32)
