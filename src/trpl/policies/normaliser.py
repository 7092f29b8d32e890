"""A frozen observation normaliser: (x − shift)/scale, clipped, float32."""

import numpy as np


def standardise(x: np.ndarray, shift: np.ndarray, scale: np.ndarray, clip: float | None) -> np.ndarray:
    """Normalise observations, in float64 as their statistics.

    Args:
        x: Observations [..., obs].
        shift: The subtrahend.
        scale: The divisor.
        clip: The limit of the result; None for no limit.

    Returns:
        The networks' inputs.
    """
    return clipped((x - shift) / scale, clip)


def clipped(normalised: np.ndarray, clip: float | None) -> np.ndarray:
    """Clip normalised observations to ± clip, and round them to float32.

    Args:
        normalised: The observations.
        clip: The limit; None for no limit.

    Returns:
        The networks' inputs.
    """
    if clip is not None:
        normalised = np.minimum(np.maximum(normalised, -clip), clip)
    return normalised.astype(np.float32)
