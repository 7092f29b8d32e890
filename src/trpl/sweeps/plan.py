"""The runs of a sweep: methods × tasks × variants × seeds, from a named preset or a TOML file.

    methods = ["kl", "ppo"]            # a run per method, task, variant and seed
    tasks = ["Hopper-v4", "Walker2d-v4"]
    seeds = 10                         # 0 … 9, or a list of seeds; 1 if absent

    [settings]                         # any value of the configuration, for every run;
    total_steps = 1_000_000            # "none" switches off a setting that can be off; as_released = true
    [task."Hopper-v4"]                 # for one task,
    eval_episodes = 10
    [method.kl]                        # for one method (stronger than the task's),
    mean_bound = 0.05
    [variant.small]                    # and for one variant, strongest of all: each method runs once per variant
    hidden_sizes = [32, 32]

Settings that a file does not give come from the paper's preset of method and task. The same file is a preset for a
single run: `trpl train kl Hopper-v4 --preset FILE` uses its values for that method and task.
"""

import json
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from trpl.errors import ConfigError
from trpl.messages import nearest
from trpl.methods.registry import find, settings
from trpl.presets import named_sweeps, preset
from trpl.presets.lookup import check_overrides
from trpl.runs.folder import place_of
from trpl.settings.config import Config, differing
from trpl.settings.fields import shown

Values = Mapping[str, Any]
VARIANT = re.compile(r"[\w=,+-][\w.=,+ -]{0,99}")
MAX_SEEDS = 10_000
KEYS = ("methods", "tasks", "seeds", "settings", "task", "method", "variant")
NOT_IN_FILES = ("method", "env_id", "seed")  # given by methods, tasks and seeds, never as settings


@dataclass(frozen=True)
class Plan:
    """The checked content of a file."""

    methods: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()
    seeds: tuple[int, ...] = (0,)
    settings: Values = field(default_factory=dict)
    task: Mapping[str, Values] = field(default_factory=dict)
    method: Mapping[str, Values] = field(default_factory=dict)
    variant: Mapping[str, Values] = field(default_factory=dict)

    def overrides(self, method: str, env_id: str) -> dict[str, Any]:
        """Return the settings for a method on a task, without those of variants."""
        return {**self.settings, **self.task.get(env_id, {}), **self.method.get(method, {})}


class PlannedRun(NamedTuple):
    config: Config
    folder: Path  # relative to the sweep's folder


def planned_runs(name: str, *, seeds: Sequence[int] | None = None, overrides: Values | None = None) -> list[PlannedRun]:
    """List the runs of a sweep, seed by seed.

    Runs of one method on one task that differ in more than the seed get a folder per variant, named after the
    variant or the settings that differ.

    Args:
        name: A named sweep, or a TOML file.
        seeds: Seeds in place of the file's.
        overrides: Settings that take precedence over the file's.

    Returns:
        The runs, each with its folder.

    Raises:
        ConfigError: There is no such sweep, or it contains an unknown name or an invalid value.
    """
    overrides = dict(overrides or {})
    check_overrides(overrides)
    sweeps = named_sweeps()
    if name in sweeps:
        configs, own_seeds = _named_configs(sweeps[name].configs, overrides), (0,)
    elif Path(name).suffix == ".toml":
        plan = read_plan(name)
        configs, own_seeds = _planned_configs(plan, overrides, file=name), plan.seeds
    else:
        raise ConfigError(
            f"there is no sweep {name!r}{nearest(name, sweeps)}; give a .toml file or one of {', '.join(sweeps)}"
        )
    seeded = ((config.replace(seed=seed), variant) for seed in seeds or own_seeds for config, variant in configs)
    runs = [PlannedRun(config, place_of(config, variant=variant)) for config, variant in seeded]
    if len({run.folder for run in runs}) < len(runs):
        raise ConfigError(f"{name}: two runs are the same; list each method, task, variant and seed once")
    return runs


def read_plan(path: str | Path) -> Plan:
    """Read a sweep or preset file; refuse unknown keys, suggesting the nearest."""
    try:
        content = tomllib.loads(Path(path).read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not TOML: {error}") from error
    try:
        return _plan(content)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def preset_overrides(path: str | Path, method: str, env_id: str) -> dict[str, Any]:
    """Read the settings of a preset file for one method on one task.

    Args:
        path: The TOML file.
        method: The name of a method.
        env_id: The name of an environment.

    Returns:
        Settings by name.

    Raises:
        ConfigError: It is for another method or task, or contains an unknown name or an invalid value.
    """
    plan = read_plan(path)
    if plan.variant:
        raise ConfigError(f"{path} has variants ({', '.join(plan.variant)}), which only a sweep can run")
    if plan.methods and method not in plan.methods and method not in plan.method:
        raise ConfigError(f"{path} is for {', '.join(plan.methods)}, not for {method}")
    return plan.overrides(method, env_id)


def preset_text(config: Config, *, base: Config, comment: str = "") -> str:
    """Write a preset file.

    Args:
        config: The configuration that the file describes; its seed is left out.
        base: The paper's preset, which the file changes.
        comment: The first line.

    Returns:
        The content of the file.
    """
    changed = [name for name in differing(config, base, apart_from=NOT_IN_FILES) if name in config.names()]
    lines = [f"# {line}" for line in comment.splitlines()]
    lines += [f"methods = [{_toml(config.method)}]", f"tasks = [{_toml(config.env_id)}]"]
    lines += ["", f"[method.{config.method}]"]
    lines += [f"{name} = {_toml(getattr(config, name))}" for name in changed]
    return "\n".join(lines) + "\n"


def parse_seeds(text: str) -> tuple[int, ...]:
    """Parse seeds.

    Args:
        text: "10" is the seeds 0 … 9, "3,5" those two, "10:20" from 10 up to but without 20.

    Returns:
        The seeds.

    Raises:
        ConfigError: The text has another form.
    """
    try:
        if "," in text:
            seeds: Sequence[int] = [int(part) for part in text.split(",") if part.strip()]
        elif ":" in text:
            first, end = map(int, text.split(":"))
            seeds = range(first, end)
        else:
            seeds = range(int(text))
        seeds = tuple(seeds[: MAX_SEEDS + 1])
    except (ValueError, OverflowError):
        seeds = ()
    if not 0 < len(seeds) <= MAX_SEEDS or min(seeds) < 0 or len(set(seeds)) < len(seeds):
        raise ConfigError(f'seeds {text!r}: give a number of seeds ("10"), a list ("3,5") or a range ("10:20")')
    return seeds


def overrides_of(config: Config) -> dict[str, Any]:
    """Return the fewest overrides that turn the preset of `config`'s method and task into `config`."""
    found: dict[str, Any] = {}
    while True:  # an override may imply other settings (a schedule its temperature), which then need overriding too
        reached = preset(config.method, config.env_id, **found)
        missing = {name: config.get(name) for name in differing(config, reached, apart_from=())}
        if not missing:
            return found
        found |= missing


def _named_configs(configs: Iterable[Config], overrides: Values) -> list[tuple[Config, str]]:
    """Apply overrides, with the settings that they imply, to a named sweep; return configurations and variants."""
    changed = [preset(c.method, c.env_id, **{**overrides_of(c), **overrides}) for c in configs]
    return list(zip(changed, _difference_names(changed), strict=True))


def _planned_configs(plan: Plan, overrides: Values, *, file: str) -> list[tuple[Config, str]]:
    """List the configurations of a sweep file, each with its variant ("" without any)."""
    for wanted in ("methods", "tasks"):
        if not getattr(plan, wanted):
            raise ConfigError(f'{file} has no {wanted}: a sweep needs {wanted} = ["..."]')
    for kind, swept in (("task", plan.tasks), ("method", plan.methods)):
        for name in getattr(plan, kind):
            if name not in swept:
                hint = nearest(name, swept)
                raise ConfigError(f"{file}: [{kind}.{name}] has no run: {name!r} is not in {kind}s{hint}")
    found = []
    for env_id, method, (variant, changes) in product(plan.tasks, plan.methods, (plan.variant or {"": {}}).items()):
        try:
            config = preset(method, env_id, **{**plan.overrides(method, env_id), **changes, **overrides})
        except ConfigError as error:
            raise ConfigError(f"{file}, {' '.join(filter(None, (method, variant, env_id)))}: {error}") from error
        found.append((config, variant))
    return found


def _difference_names(configs: Sequence[Config]) -> list[str]:
    """Name each configuration by the settings that distinguish it among those of its method and task."""
    names = []
    for config in configs:
        alike = [c for c in configs if (c.env_id, c.method) == (config.env_id, config.method)]
        apart = dict.fromkeys(name for other in alike for name in differing(config, other))
        given = [(name, config.get(name)) for name in config.names() if name in apart]
        names.append(",".join(f"{name}={shown(value, between='x')}" for name, value in given if value is not None))
    return names


def _plan(content: Mapping[str, Any]) -> Plan:
    for key in content:
        if key not in KEYS:
            known = key in settings() and key not in NOT_IN_FILES
            hint = f"; put it under [settings]: {key}" if known else nearest(key, KEYS)
            raise ConfigError(f"there is no key {key!r} in a sweep file{hint}")
    tables = {key: _table(content, key) for key in ("task", "method", "variant")}
    for method in (*tables["method"], *_names(content, "methods")):
        find(method)
    for variant in tables["variant"]:
        if not VARIANT.fullmatch(variant) or variant.startswith("seed-"):
            raise ConfigError(f"variant {variant!r} cannot name a folder")
    return Plan(
        methods=_names(content, "methods"),
        tasks=_names(content, "tasks"),
        seeds=_seeds(content.get("seeds", 1)),
        settings=_settings(content.get("settings", {}), "settings"),
        **{key: {n: _settings(v, f"{key}.{n}") for n, v in table.items()} for key, table in tables.items()},
    )


def _names(content: Mapping[str, Any], key: str) -> tuple[str, ...]:
    found = content.get(key, [])
    if not isinstance(found, list) or not all(isinstance(name, str) for name in found):
        raise ConfigError(f'{key} must be a list of names, ["...", "..."], not {found!r}')
    return tuple(found)


def _seeds(found: Any) -> tuple[int, ...]:
    if type(found) is int and 1 <= found <= MAX_SEEDS:
        return tuple(range(found))
    if isinstance(found, list) and found and all(type(seed) is int and seed >= 0 for seed in found):
        return tuple(found)
    raise ConfigError(f"seeds must be a number of seeds (at most {MAX_SEEDS}) or a list of seeds, not {found!r}")


def _table(content: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = content.get(key, {})
    if not isinstance(found, dict):
        raise ConfigError(f"{key} must be tables [{key}.NAME], not {found!r}")
    return found


def _settings(found: Any, where: str) -> dict[str, Any]:
    if not isinstance(found, dict):
        raise ConfigError(f"[{where}] must be settings by name, not {found!r}")
    try:
        check_overrides(found)
    except ConfigError as error:
        raise ConfigError(f"in [{where}] {error}") from error
    for name in set(found).intersection(NOT_IN_FILES):
        raise ConfigError(f"in [{where}] {name} is not a setting: use methods, tasks and seeds")
    return {name: _switched_off(name, value) for name, value in found.items()}


def _switched_off(name: str, value: Any) -> Any:
    """Return None for the "none" of an optional setting, since TOML has no null."""
    return None if value == "none" and name in settings() and settings()[name].metadata["optional"] else value


def _toml(value: Any) -> str:
    if value is None:
        return '"none"'
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{json.dumps(key)} = {_toml(item)}' for key, item in value.items())}}}"
    return json.dumps(value, ensure_ascii=False)  # strings, numbers and booleans are spelled alike in TOML
