"""The paper's table of hyperparameters for Humanoid (label `tab:humanoid-HP`)."""

from typing import Any

from trpl.experiments.presets import mujoco

TASKS = ("trpl/HumanoidPaper-v4", "Humanoid-v4", "Humanoid-v5")

PAPER = "paper, table of Humanoid hyperparameters"
BUDGET = "budget of 610 epochs from the authors' release"

ALL = mujoco.ALL | {"total_steps": 610 * 16384, "rollout_size": 16384, "eval_every": 2}
TRUST_REGION = {
    **mujoco.TRUST_REGION,
    **ALL,
    "policy_epochs": 10,
    "learning_rate": 1e-4,
    "learning_rate_vf": 4.5e-4,
    "minibatch_size": 256,
    "regression_weight": 8.0,
}
ENTROPY = {"entropy_schedule": "exponential", "target_entropy": 0.0, "temperature": 0.2, "entropy_equality": True}
CLIPPED = mujoco.CLIPPED | ALL | {"learning_rate": 1e-4, "learning_rate_vf": 1e-4, "minibatch_size": 512}

KL = TRUST_REGION | {"mean_bound": 0.05, "cov_bound": 1e-4}
W2 = TRUST_REGION | {"mean_bound": 0.05, "cov_bound": 0.01} | mujoco.W2_FORM
FROBENIUS = TRUST_REGION | {"mean_bound": 0.05, "cov_bound": 1e-4} | mujoco.PLAIN

COLUMNS: dict[str, dict[str, Any]] = {
    "kl": KL,
    "w2": W2,
    "frobenius": FROBENIUS,
    "kl-e": KL | ENTROPY,
    "w2-e": W2 | ENTROPY,
    "frobenius-e": FROBENIUS | ENTROPY,
    "kl-joint": TRUST_REGION | {"bound": 0.0501},
    "ppo": CLIPPED | mujoco.CODE_LEVEL | {"learning_rate_decay": True},
    "ppo-m": CLIPPED,
    "papi": CLIPPED | mujoco.CODE_LEVEL | {"bound": 0.015},
    "papi-gradient": CLIPPED | mujoco.CODE_LEVEL | {"bound": 0.015},
    "trpo": CLIPPED | mujoco.TRPO | mujoco.NO_POLICY_EPOCHS,
}
CONTEXTUAL: dict[str, dict[str, Any]] = {}
SOURCES = {
    **{method: f"{PAPER}; {BUDGET}" for method in COLUMNS},
    "kl-joint": f"{PAPER}, KL column with ε = ε_μ + ε_Σ; {BUDGET}",
    "papi-gradient": f"{PAPER}, PAPI column; {BUDGET}",
    "trpo": f"not in the paper: {PAPER}, PPO-M column, and Schulman et al. (2015) for the rest; {BUDGET}",
}
