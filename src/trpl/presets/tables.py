"""The paper's tables of hyperparameters, and this project's for other tasks: values shared by all columns.

Values that differ between columns are with the methods (`trpl.methods`), under the names of the tables. Values that all
tables share are the defaults of `Config`.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple


class Table(NamedTuple):
    """One table of hyperparameters."""

    paper: str  # its name in the paper
    budget: str  # where its number of steps comes from
    tasks: tuple[str, ...]
    shared: Mapping[str, Any]


MUJOCO_TASKS = ("Hopper-v4", "Walker2d-v4", "HalfCheetah-v4", "Ant-v4")  # in the paper; -v5 are their successors
HUMANOID = "trpl/HumanoidPaper-v4"
REACHER, PAPER_REACHER = "trpl/Reacher5Sparse-v0", "trpl/Reacher5SparsePaper-v0"
EPISODIC = "trpl/EpisodicReacher5-v0"

TABLES: Mapping[str, Table] = {  # by the names that methods use for their columns
    "mujoco": Table(
        "paper, table of MuJoCo hyperparameters",
        "budget of 1465 epochs from the authors' release",
        (*MUJOCO_TASKS, *(task.replace("-v4", "-v5") for task in MUJOCO_TASKS)),
        {
            "total_steps": 1465 * 2048,
            "rollout_size": 2048,
            "eval_every": 10,  # with the table's two windows a fifth of the run time; every epoch would be two thirds
        },
    ),
    "reacher": Table(
        "paper, table of ReacherSparse hyperparameters",
        "budget of 610 epochs from the authors' release",
        (REACHER, PAPER_REACHER),
        {"total_steps": 610 * 16384, "rollout_size": 16384, "eval_every": 1},
    ),
    "humanoid": Table(
        "paper, table of Humanoid hyperparameters",
        "budget of 610 epochs from the authors' release",
        (HUMANOID, "Humanoid-v4", "Humanoid-v5"),
        {"total_steps": 610 * 16384, "rollout_size": 16384, "eval_every": 2},
    ),
    "episodic": Table(
        "this project's settings for episodic tasks",
        "60 epochs of 160 episodes",
        (EPISODIC,),
        {
            "gae_lambda": 1.0,  # an episode is one step
            "total_steps": 60 * 160,
            "rollout_size": 160,
            "minibatch_size": 32,
            "value_epochs": 20,
            "learning_rate_vf": 1e-3,
            "covariance": "full",
            "hidden_sizes": (32, 32),
            "hidden_sizes_vf": (32, 32),
            "eval_every": 3,
            "eval_episodes": 20,
        },
    ),
    "control": Table(
        "settings of this project for small discrete tasks (results/discrete)",
        "100 epochs",
        ("CartPole-v1", "Acrobot-v1", "MiniGrid-Empty-5x5-v0"),
        {"total_steps": 100 * 2048, "rollout_size": 2048, "eval_every": 10, "learning_rate_decay": True},
    ),
    "lunar": Table(
        "settings of this project for LunarLander (results/discrete)",
        "a million steps, discount and λ of rl_zoo3's PPO",
        ("LunarLander-v3",),
        {
            "total_steps": 1_000_000,
            "rollout_size": 4096,
            "value_epochs": 5,
            "discount": 0.999,
            "gae_lambda": 0.98,
            "entropy_weight": 0.01,
            "eval_every": 10,
            "learning_rate_decay": True,
        },
    ),
}
DEFAULT_TABLE = "mujoco"  # for tasks that are in no table
PAPER_TASKS = (*MUJOCO_TASKS, HUMANOID)  # of the paper's Table 1, in its order


def table_of(env_id: str) -> str:
    """Name the table that contains a task."""
    return next((name for name, table in TABLES.items() if env_id in table.tasks), DEFAULT_TABLE)
