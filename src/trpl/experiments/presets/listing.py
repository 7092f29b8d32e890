"""Presets as text, for the terminal."""

from typing import Any

from trpl.experiments.config import METHODS, NAMES, Config, applies
from trpl.experiments.presets import SWEEPS, TABLES, preset

SHOWN = (  # the rows of the paper's tables, in their order
    *("rollout_size", "gae_lambda", "discount", "mean_bound", "cov_bound", "bound", "target_entropy", "temperature"),
    *("entropy_equality", "value_epochs", "policy_epochs", "learning_rate", "learning_rate_vf", "minibatch_size"),
    *("regression_weight", "entropy_weight", "normalise_observations", "normalise_rewards", "observation_clip"),
    *("reward_clip", "value_clip", "ratio_clip", "contextual", "hidden_sizes", "hidden_sizes_vf", "total_steps"),
)


def all_presets() -> str:
    """The three tables, and the named sweeps."""
    blocks = []
    for table in reversed(TABLES):
        columns = {method: preset(method, table.TASKS[0]) for method in METHODS}
        rows = [["", *METHODS]]
        rows += [[name, *(shown(getattr(config, name)) for config in columns.values())] for name in SHOWN]
        blocks.append(f"{table.PAPER}: {', '.join(table.TASKS)}\n\n{aligned(rows)}")
    sweeps = "\n".join(f"  {name:<9} {len(s.configs):>3} runs per seed  {s.description}" for name, s in SWEEPS.items())
    blocks.append(f"named sweeps (trpl sweep NAME)\n\n{sweeps}")
    return "\n\n".join(blocks)


def one_preset(method: str, env_id: str) -> str:
    """Every setting of one method on one task, with what it means."""
    config = preset(method, env_id)
    names = [name for name in NAMES if applies(name, method) and name not in ("method", "env_id", "source")]
    fields = Config.__dataclass_fields__
    rows = [[name, shown(getattr(config, name)), fields[name].metadata["help"]] for name in names]
    return f"{method} on {env_id}\nsource: {config.source}\n\n{aligned(rows)}"


def shown(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return " ".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def aligned(rows: list[list[str]]) -> str:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join("  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows)
