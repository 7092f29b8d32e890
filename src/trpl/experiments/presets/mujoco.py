"""The paper's table of hyperparameters for the MuJoCo benchmarks (label `tab:mujoco-HP`)."""

from typing import Any

PAPER_TASKS = ("Hopper-v4", "Walker2d-v4", "HalfCheetah-v4", "Ant-v4")
TASKS = (*PAPER_TASKS, "Hopper-v5", "Walker2d-v5", "HalfCheetah-v5", "Ant-v5")

PAPER = "paper, table of MuJoCo hyperparameters"
BUDGET = "budget of 1465 epochs from the authors' release"

ALL = {
    "total_steps": 1465 * 2048,
    "rollout_size": 2048,
    "gae_lambda": 0.95,
    "discount": 0.99,
    "value_epochs": 10,
    "entropy_weight": 0.0,
    "normalise_observations": True,
    "contextual": False,
    "hidden_sizes": (64, 64),
    "hidden_sizes_vf": (64, 64),
    "eval_every": 10,  # with the two windows of the table a fifth of the time; every epoch would be two thirds
}
TRUST_REGION = {
    **ALL,
    "entropy_schedule": "none",
    "policy_epochs": 20,
    "learning_rate": 5e-5,
    "learning_rate_vf": 4.5e-4,
    "minibatch_size": 32,
    "regression": "penalty",
    "regression_weight": 8.0,
}
PROJECTION = {**TRUST_REGION, "mean_bound": 0.03, "cov_bound": 1e-3}
ENTROPY = {"entropy_schedule": "exponential", "target_entropy": 0.0, "temperature": 0.5, "entropy_equality": False}
CLIPPED = {
    **ALL,
    "policy_epochs": 10,
    "learning_rate": 3e-4,
    "learning_rate_vf": 2.5e-4,
    "minibatch_size": 64,
    "ratio_clip": 0.2,
}
CODE_LEVEL = {"normalise_rewards": True, "observation_clip": 10.0, "reward_clip": 10.0, "value_clip": 0.2}
TRPO = {"bound": 0.01, "cg_steps": 10, "cg_damping": 0.1, "line_search_steps": 10}
NO_POLICY_EPOCHS = {"policy_epochs": None, "learning_rate": None, "ratio_clip": None}

W2_FORM, PLAIN = {"wasserstein_form": "commuting"}, {"whitened": False}

COLUMNS: dict[str, dict[str, Any]] = {
    "kl": PROJECTION,
    "w2": PROJECTION | W2_FORM,
    "frobenius": PROJECTION | PLAIN,
    "kl-e": PROJECTION | ENTROPY,
    "w2-e": PROJECTION | W2_FORM | ENTROPY,
    "frobenius-e": PROJECTION | PLAIN | ENTROPY,
    "kl-joint": TRUST_REGION | {"bound": 0.031},
    "ppo": CLIPPED | CODE_LEVEL | {"learning_rate_decay": True},
    "ppo-m": CLIPPED,
    "papi": CLIPPED | CODE_LEVEL | {"bound": 0.015},
    "papi-gradient": CLIPPED | CODE_LEVEL | {"bound": 0.015},
    "trpo": CLIPPED | TRPO | NO_POLICY_EPOCHS,
}
CONTEXTUAL: dict[str, dict[str, Any]] = {}
SOURCES = {
    **{method: f"{PAPER}; {BUDGET}" for method in COLUMNS},
    "kl-joint": f"{PAPER}, KL column with ε = ε_μ + ε_Σ; {BUDGET}",
    "papi-gradient": f"{PAPER}, PAPI column; {BUDGET}",
    "trpo": f"not in the paper: {PAPER}, PPO-M column, and Schulman et al. (2015) for the rest; {BUDGET}",
}
