"""The paper's table of hyperparameters for the sparse five-link reacher (label `tab:reacher-HP`)."""

from typing import Any

from trpl.experiments.presets import mujoco

TASKS = ("trpl/Reacher5Sparse-v0", "trpl/Reacher5SparsePaper-v0")

PAPER = "paper, table of ReacherSparse hyperparameters"
BUDGET = "budget of 610 epochs from the authors' release"

ALL = mujoco.ALL | {"total_steps": 610 * 16384, "rollout_size": 16384, "eval_every": 1}
TRUST_REGION = {
    **mujoco.TRUST_REGION,
    **ALL,
    "policy_epochs": 20,
    "learning_rate": 3e-4,
    "learning_rate_vf": 4.5e-4,
    "minibatch_size": 256,
    "regression_weight": 8.0,
}
ENTROPY = mujoco.ENTROPY  # the table has none for this task
CLIPPED = {
    **mujoco.CLIPPED,
    **ALL,
    "policy_epochs": 20,
    "learning_rate": 1e-4,
    "learning_rate_vf": 1e-4,
    "minibatch_size": 512,
}

KL = TRUST_REGION | {"mean_bound": 0.03, "cov_bound": 5e-5}
W2 = TRUST_REGION | {"mean_bound": 0.03, "cov_bound": 1e-3} | mujoco.W2_FORM
FROBENIUS = TRUST_REGION | {"mean_bound": 0.03, "cov_bound": 5e-5} | mujoco.PLAIN

COLUMNS: dict[str, dict[str, Any]] = {
    "kl": KL,
    "w2": W2,
    "frobenius": FROBENIUS,
    "kl-e": KL | ENTROPY,
    "w2-e": W2 | ENTROPY,
    "frobenius-e": FROBENIUS | ENTROPY,
    "kl-joint": TRUST_REGION | {"bound": 0.03005},
    "ppo": CLIPPED | mujoco.CODE_LEVEL | {"learning_rate_decay": True},
    "ppo-m": CLIPPED,
    "papi": CLIPPED | mujoco.CODE_LEVEL | {"bound": 0.03},
    "papi-gradient": CLIPPED | mujoco.CODE_LEVEL | {"bound": 0.03},
    "trpo": CLIPPED | mujoco.TRPO | mujoco.NO_POLICY_EPOCHS,
}
CONTEXTUAL: dict[str, dict[str, Any]] = {  # "the second value for ε_Σ of the KL projection"
    "kl": {"cov_bound": 1e-3},
    "kl-e": {"cov_bound": 1e-3},
    "kl-joint": {"bound": 0.031},
}
SOURCES = {
    **{method: f"{PAPER}; {BUDGET}" for method in COLUMNS},
    **{
        method: f"{PAPER}; entropy control from the MuJoCo table; {BUDGET}"
        for method in ("kl-e", "w2-e", "frobenius-e")
    },
    "kl-joint": f"{PAPER}, KL column with ε = ε_μ + ε_Σ; {BUDGET}",
    "papi-gradient": f"{PAPER}, PAPI column; {BUDGET}",
    "trpo": f"not in the paper: {PAPER}, PPO-M column, and Schulman et al. (2015) for the rest; {BUDGET}",
}
