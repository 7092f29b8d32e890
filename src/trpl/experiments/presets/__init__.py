"""Hyperparameters by method and task, a file per table of the paper.

`preset(method, env_id)` is what `trpl train METHOD ENV` starts from; `SWEEPS` are named lists of configurations for
`trpl sweep`.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from trpl.errors import ConfigError
from trpl.experiments.config import AS_RELEASED, METHODS, RELEASED, Config, applies, check_names, nearest
from trpl.experiments.presets import ablation, humanoid, mujoco, reacher

TABLES = (humanoid, reacher, mujoco)  # the last serves every task that the others do not name


class Sweep(NamedTuple):
    description: str
    configs: tuple[Config, ...]


def preset(method: str, env_id: str, **overrides: Any) -> Config:
    """The table's column for `method` on `env_id`, with any value overridden by name.

    `as_released=True` stands for every `released_...` switch that means something to the method.
    """
    if method not in METHODS:
        raise ConfigError(f"there is no method {method!r}; there are {', '.join(METHODS)}{nearest(method, METHODS)}")
    check_names(overrides, short=True)
    if overrides.pop(AS_RELEASED, False):
        switches = [f"released_{quirk}" for quirk in RELEASED]
        overrides = {name: True for name in switches if applies(name, method)} | overrides
    table = next((t for t in TABLES if env_id in t.TASKS), mujoco)
    source = table.SOURCES[method]
    if env_id not in table.TASKS:
        source += f"; {env_id} is not one of its tasks, so these numbers were not tuned for it"
    contextual = table.CONTEXTUAL.get(method, {}) if overrides.get("contextual") else {}
    implied = _implied(overrides, table.ENTROPY)
    values = {**table.COLUMNS[method], **contextual, **implied, "source": source, **overrides}
    return Config(method=method, env_id=env_id, **values)


def _implied(overrides: Mapping[str, Any], entropy: Mapping[str, Any]) -> dict[str, Any]:
    """What choosing full regression or an entropy schedule brings with it unless it is given too."""
    implied = dict(ablation.FULL_REGRESSION) if overrides.get("regression") == "full" else {}
    if overrides.get("entropy_schedule", "none") != "none":
        implied |= entropy
    if overrides.get("entropy_schedule") == "linear":
        implied["temperature"] = None
    return implied


def _table_sweep(
    table: Any, description: str, *, methods: tuple[str, ...], tasks: tuple[str, ...] | None = None
) -> Sweep:
    configs = tuple(preset(method, env_id) for env_id in tasks or table.TASKS for method in methods)
    return Sweep(description, configs)


PAPER_METHODS = ("frobenius", "w2", "kl", "papi", "ppo", "ppo-m", "frobenius-e", "w2-e", "kl-e")

SWEEPS: Mapping[str, Sweep] = {
    "mujoco": _table_sweep(
        mujoco, "Table 1 on Hopper, Walker2d, HalfCheetah and Ant", methods=PAPER_METHODS, tasks=mujoco.PAPER_TASKS
    ),
    "humanoid": _table_sweep(humanoid, "Table 1 on Humanoid", methods=PAPER_METHODS, tasks=("trpl/HumanoidPaper-v4",)),
    "reacher": Sweep(
        "Figure 2 (right): the sparse reacher, with and without a covariance per state",
        tuple(
            preset(method, "trpl/Reacher5Sparse-v0", contextual=contextual)
            for contextual in (False, True)
            for method in ("frobenius", "w2", "kl", "papi", "ppo", "ppo-m")
            if not (contextual and method == "papi")
        ),
    ),
    "alpha": Sweep(ablation.DESCRIPTION, tuple(preset("w2", ablation.ENV_ID, **v) for v in ablation.VARIANTS)),
}
