"""Search spaces for tuning: for each method the settings worth searching, around the values of the paper's tables."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trpl.experiments.config import Config


@dataclass(frozen=True)
class Real:
    """Numbers from `low` to `high`; with `log` every order of magnitude is as likely as any other."""

    low: float
    high: float
    log: bool = False

    def __contains__(self, value: Any) -> bool:
        return self.low <= value <= self.high


@dataclass(frozen=True)
class Whole:
    """Whole numbers from `low` to `high`, both included."""

    low: int
    high: int
    log: bool = False

    def __contains__(self, value: Any) -> bool:
        return self.low <= value <= self.high


@dataclass(frozen=True)
class Choice:
    """One of some values without an order."""

    options: tuple[Any, ...]

    def __contains__(self, value: Any) -> bool:
        return value in self.options


Range = Real | Whole | Choice
Space = Mapping[str, Range]

VALUES: Space = {"learning_rate_vf": Real(3e-5, 3e-3, log=True), "value_epochs": Whole(3, 30, log=True)}
UPDATES: Space = {
    **VALUES,
    "learning_rate": Real(1e-5, 1e-3, log=True),
    "policy_epochs": Whole(3, 40, log=True),
    "minibatch_size": Choice((32, 64, 128, 256, 512)),
}
PENALTY: Space = {**UPDATES, "regression_weight": Real(0.5, 128.0, log=True)}
PARTS: Space = {**PENALTY, "mean_bound": Real(3e-3, 0.3, log=True)}
ENTROPY: Space = {
    "target_entropy": Real(-1.0, 1.0),
    "temperature": Real(0.05, 0.95),
    "entropy_equality": Choice((False, True)),
}
CLIPPED: Space = {**UPDATES, "ratio_clip": Real(0.05, 0.5, log=True)}

KL: Space = {**PARTS, "cov_bound": Real(1e-5, 1e-2, log=True)}
W2: Space = {**PARTS, "cov_bound": Real(1e-4, 0.1, log=True)}
FROBENIUS: Space = {**PARTS, "cov_bound": Real(1e-5, 1e-2, log=True)}
PAPI: Space = {**CLIPPED, "bound": Real(2e-3, 0.2, log=True)}

SPACES: Mapping[str, Space] = {
    "kl": KL,
    "w2": W2,
    "frobenius": FROBENIUS,
    "kl-e": {**KL, **ENTROPY},
    "w2-e": {**W2, **ENTROPY},
    "frobenius-e": {**FROBENIUS, **ENTROPY},
    "kl-joint": {**PENALTY, "bound": Real(3e-3, 0.3, log=True)},
    "ppo": CLIPPED,
    "ppo-m": CLIPPED,
    "papi": PAPI,
    "papi-gradient": PAPI,
    "trpo": {
        **VALUES,
        "minibatch_size": UPDATES["minibatch_size"],
        "bound": Real(1e-3, 0.1, log=True),
        "cg_steps": Whole(5, 30),
        "cg_damping": Real(1e-3, 1.0, log=True),
    },
}


def space_of(base: Config, *, fixed: Mapping[str, Any]) -> dict[str, Range]:
    """What to search for `base`'s method: its space without what is `fixed` and what `base` has switched off.

    Minibatches larger than the rollout are left out.
    """
    found = {}
    for name, wanted in SPACES[base.method].items():
        if name in fixed or getattr(base, name) is None:
            continue
        if name == "minibatch_size" and isinstance(wanted, Choice):
            wanted = Choice(tuple(size for size in wanted.options if size <= base.rollout_size))
            if len(wanted.options) < 2:
                continue
        found[name] = wanted
    return found


def inside(space: Space, config: Config) -> bool:
    """Whether a configuration is a point of the space."""
    return all(getattr(config, name) in wanted for name, wanted in space.items())
