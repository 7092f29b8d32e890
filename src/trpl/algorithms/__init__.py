"""Update rules: how a batch of experience changes the weights."""

import functools

from trpl.errors import ConfigError
from trpl.messages import needs
from trpl.methods import find, methods
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

    Raises:
        ConfigError: The method needs a Gaussian policy, and the head is another.
    """
    method = find(config.method)
    if method.needs_gaussian and not head.gaussian:
        others = ", ".join(other.name for other in methods() if not other.needs_gaussian)
        raise ConfigError(
            f"method {method.name!r} is for Gaussian policies, and the policy of {config.env_id} is a {head.words}:"
            f" use one of {others}"
        )
    return method.algorithm(config, obs_size=obs_size, head=head)
