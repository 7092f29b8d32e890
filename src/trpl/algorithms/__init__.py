"""Update rules: how a batch of experience changes the weights."""

import functools

from trpl.messages import needs
from trpl.methods import find
from trpl.settings import Config

with needs("train"):
    from trpl.algorithms.base import Algorithm, Batch
    from trpl.policies.heads import Head

__all__ = ["Algorithm", "Batch", "make_algorithm"]


@functools.lru_cache(maxsize=16)
def make_algorithm(config: Config, *, obs_size: int, head: Head) -> Algorithm:
    """Make the algorithm of `config.method`.

    The last few algorithms are cached, so that resuming a run in the same process does not compile it again.

    Args:
        config: The settings.
        obs_size: The length of an observation.
        head: The policy head for the task's action space.

    Returns:
        The algorithm.
    """
    return find(config.method).algorithm(config, obs_size=obs_size, head=head)
