"""The settings that `trpl train METHOD ENV` starts from."""

from collections.abc import Mapping
from typing import Any

from trpl.errors import ConfigError
from trpl.methods.registry import check_names, configure, find
from trpl.presets.tables import TABLES, table_of
from trpl.settings import Config

UNTABLED = {"action_units": "box", "clip_actions": True}  # for tasks outside the tables: their boxes may have any size
AS_RELEASED = "as_released"  # override that sets all switches of the authors' release,
SWITCH = "released_"  # with which their names begin


def check_overrides(overrides: Mapping[str, Any]) -> None:
    """Refuse overrides that `preset` does not take.

    Args:
        overrides: Settings by name.

    Raises:
        ConfigError: A setting does not exist.
    """
    check_names(name for name in overrides if name != AS_RELEASED)
    if type(overrides.get(AS_RELEASED, True)) is not bool:
        raise ConfigError(f"{AS_RELEASED} must be true or false, not {overrides[AS_RELEASED]!r}")


def preset(method: str, env_id: str, **overrides: Any) -> Config:
    """Make a configuration from the paper's column for a method on a task.

    Args:
        method: The name of a method, for example "kl".
        env_id: The task's Gymnasium name. A task outside the paper's tables gets the values of the MuJoCo table.
        **overrides: Settings by name. Some imply others: an entropy schedule implies its temperature, for example.
            `as_released=True` stands for every `released_...` switch of the method.

    Returns:
        The configuration; `source` says where its numbers come from.

    Raises:
        ConfigError: There is no such method or setting, or a value is out of range.

    Examples:
        >>> from trpl.presets import preset
        >>> config = preset("kl", "Hopper-v4", seed=3)
        >>> config.mean_bound, config.cov_bound, config.seed
        (0.03, 0.001, 3)
    """
    found = find(method)
    check_overrides(overrides)
    if overrides.pop(AS_RELEASED, False):
        switches = [name for name in found.settings.names() if name.startswith(SWITCH)]
        overrides = dict.fromkeys(switches, True) | overrides
    if versions := [task for table in TABLES.values() for task in table.tasks if task.startswith(f"{env_id}-v")]:
        raise ConfigError(f"env_id {env_id!r} does not name its version; did you mean {versions[0]!r}?")
    name = table_of(env_id)
    table = TABLES[name]
    column = {**table.shared, **found.columns.get(name, {})}
    if overrides.get("contextual"):
        column |= found.columns.get(f"{name} contextual", {})
    source = column.pop("source", found.source) or "the method's defaults, which are in no table of the paper"
    source = source.format(table=table.paper, budget=table.budget)
    if env_id not in table.tasks:
        column |= UNTABLED
        source += f"; {env_id} is not one of its tasks, so these numbers were not tuned for it"
    implied = found.implied(name, overrides) if found.implied else {}
    values = {**column, **implied, "source": source, **overrides}
    return configure(method, {**values, "env_id": env_id})
