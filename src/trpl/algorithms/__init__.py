"""Update rules. `make_algorithm` is the only place that knows them by name."""

import functools
import importlib

from trpl.algorithms.base import Algorithm, Batch, Settings

MODULES = {
    **dict.fromkeys(("kl", "w2", "frobenius", "kl-e", "w2-e", "frobenius-e", "kl-joint"), "trpl"),
    **dict.fromkeys(("ppo", "ppo-m"), "ppo"),
    **dict.fromkeys(("papi", "papi-gradient"), "papi"),
    "trpo": "trpo",
}

__all__ = ["Algorithm", "Batch", "Settings", "make_algorithm"]


@functools.lru_cache(maxsize=16)
def make_algorithm(config: Settings, *, obs_size: int, action_size: int) -> Algorithm:
    """The algorithm of `config.method`: one module here with a function `make`, and one line above.

    Kept for the last few configurations, so that going on with a run in the same process does not compile it again.
    """
    module = importlib.import_module(f"trpl.algorithms.{MODULES[config.method]}")
    return module.make(config, obs_size=obs_size, action_size=action_size)
