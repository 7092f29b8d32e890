"""Seeds as functions of a run's seed; each use of randomness is a stream with a number of its own."""

import numpy as np

from trpl.errors import ConfigError

# the last word of the seeds [seed, ..., stream]
ENVIRONMENT_STREAM, NOISE_STREAM, EVALUATION_STREAM, VIDEO_STREAM, LEARNING_STREAM = 101, 102, 103, 104, 201


def derived_seed(*words: int) -> int:
    """Derive a seed from words, for generators that take a single number."""
    if min(words) < 0:
        raise ConfigError(f"seed must be at least 0, not {min(words)}")
    return int(np.random.SeedSequence(words).generate_state(1)[0])
