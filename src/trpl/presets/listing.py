"""Presets as text, for the terminal."""

from trpl.methods import find, names
from trpl.presets.lookup import preset
from trpl.presets.sweeps import named_sweeps
from trpl.presets.tables import TABLES
from trpl.settings.fields import shown

SHOWN = (  # the rows of the paper's tables, in their order
    *("rollout_size", "gae_lambda", "discount", "mean_bound", "cov_bound", "bound", "target_entropy", "temperature"),
    *("entropy_equality", "value_epochs", "policy_epochs", "learning_rate", "learning_rate_vf", "minibatch_size"),
    *("regression_weight", "entropy_weight", "normalise_observations", "normalise_rewards", "observation_clip"),
    *("reward_clip", "value_clip", "ratio_clip", "contextual", "hidden_sizes", "hidden_sizes_vf", "total_steps"),
)


def all_presets() -> str:
    """Format the tables of settings, and the named sweeps.

    Returns:
        The text.
    """
    blocks = []
    for table in TABLES.values():
        columns = {method: preset(method, table.tasks[0]) for method in names()}
        rows = [["", *columns]]
        rows += [[name, *(shown(config.get(name)) for config in columns.values())] for name in SHOWN]
        blocks.append(f"{table.paper}: {', '.join(table.tasks)}\n\n{aligned(rows)}")
    sweeps = [f"  {name:<9} {len(s.configs):>3} runs per seed  {s.description}" for name, s in named_sweeps().items()]
    blocks.append("\n".join(["named sweeps (trpl sweep NAME)", "", *sweeps]))
    return "\n\n".join(blocks)


def one_preset(method: str, env_id: str) -> str:
    """Format every setting of one method on one task, with its help.

    Args:
        method: The name of a method.
        env_id: The name of an environment.

    Returns:
        The text.
    """
    config, owner = preset(method, env_id), find(method).settings
    own = [name for name in owner.names() if name not in ("method", "env_id", "source")]
    rows = [[name, shown(getattr(config, name)), owner.field(name).metadata["help"]] for name in own]
    return f"{method} on {env_id}\nsource: {config.source}\n\n{aligned(rows)}"


def aligned(rows: list[list[str]]) -> str:
    """Format rows of cells as aligned columns."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join("  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows)
