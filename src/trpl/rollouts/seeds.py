"""Seeds of environments as functions of a run's seed, and the type of ended episodes."""

import numpy as np

ENVIRONMENT_STREAM = 101

Ended = list[tuple[int, np.ndarray]]  # which environment's episode ended, and its last observation


def derived_seed(*words: int) -> int:
    """Derive a seed from words, for generators that take a single number."""
    return int(np.random.SeedSequence(words).generate_state(1)[0])
