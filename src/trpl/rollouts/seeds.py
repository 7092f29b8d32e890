"""Seeds of environments, as functions of a run's seed, and what a step says of ended episodes."""

import numpy as np

ENVIRONMENT_STREAM = 101

Ended = list[tuple[int, np.ndarray]]  # which environment's episode ended, and its last observation


def derived_seed(*words: int) -> int:
    """Return a seed that is a function of the words, for generators that take one number."""
    return int(np.random.SeedSequence(words).generate_state(1)[0])
