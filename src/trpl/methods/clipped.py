"""PPO with its code-level options, and PPO-M without them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trpl.methods import palette
from trpl.methods.method import Method, Style
from trpl.methods.registry import register
from trpl.settings import PolicyEpochs, Real, setting


@dataclass(frozen=True, kw_only=True)
class Clipped(PolicyEpochs):
    """Settings of methods on the clipped surrogate."""

    ratio_clip: float = setting(
        0.2, "importance ratios are clipped at 1 ± this", above=0.0, search=Real(0.05, 0.5, log=True)
    )
    value_clip: float | None = setting(
        None, "change of a value per epoch beyond which the value loss gains nothing", above=0.0, optional=True
    )


_mujoco = {"policy_epochs": 10, "learning_rate": 3e-4, "learning_rate_vf": 2.5e-4, "minibatch_size": 64}
COLUMNS: Mapping[str, Mapping[str, Any]] = {
    "control": _mujoco,
    "lunar": {**_mujoco, "policy_epochs": 5},
    "mujoco": _mujoco,
    "humanoid": {"policy_epochs": 10, "learning_rate": 1e-4, "learning_rate_vf": 1e-4, "minibatch_size": 512},
    "reacher": {"policy_epochs": 20, "learning_rate": 1e-4, "learning_rate_vf": 1e-4, "minibatch_size": 512},
    "episodic": {"policy_epochs": 20, "learning_rate": 1e-3},
}
CODE_LEVEL = {"normalise_rewards": True, "observation_clip": 10.0, "reward_clip": 10.0, "value_clip": 0.2}

_common: dict[str, Any] = {"settings": Clipped, "make": "trpl.algorithms.ppo:make", "source": "{table}; {budget}"}
register(
    Method(name="ppo-m", label="PPO-M", row=4, style=Style(*palette.GREY, palette.DASH_DOT), columns=COLUMNS, **_common)
)
register(
    Method(
        name="ppo",
        label="PPO",
        row=5,
        style=Style(*palette.BLACK),
        columns={table: {**values, **CODE_LEVEL, "learning_rate_decay": True} for table, values in COLUMNS.items()},
        figures=("entropy-curves",),
        **_common,
    )
)
