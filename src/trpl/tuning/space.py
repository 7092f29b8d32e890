"""The search space of tuning: the settings of a method that have a search range."""

from collections.abc import Mapping
from typing import Any

from trpl.settings import Choice, Config
from trpl.settings.search import Range


def space_of(base: Config, *, fixed: Mapping[str, Any]) -> dict[str, Range]:
    """List the settings with a search range, except `fixed` ones and those that `base` switches off.

    Minibatch sizes larger than the rollout are left out.
    """
    found: dict[str, Range] = {}
    for name in base.names():
        wanted = base.field(name).metadata["search"]
        if wanted is None or name in fixed or getattr(base, name) is None:
            continue
        if name == "minibatch_size" and isinstance(wanted, Choice):
            wanted = Choice(tuple(size for size in wanted.options if size <= base.rollout_size))
            if len(wanted.options) < 2:
                continue
        found[name] = wanted
    return found


def inside(space: Mapping[str, Range], config: Config) -> bool:
    """Tell whether a configuration is in the space."""
    return all(getattr(config, name) in wanted for name, wanted in space.items())
