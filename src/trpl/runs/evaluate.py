"""Evaluation of a finished or running run from its newest checkpoint."""

from pathlib import Path
from typing import NamedTuple

import numpy as np

from trpl.errors import CheckpointError
from trpl.policies.acting import load_policy
from trpl.policies.storage import check, newest_checkpoint
from trpl.rollouts.evaluation import Evaluation, Evaluator
from trpl.runs.folder import read_config


class FrozenNormaliser(NamedTuple):
    """What evaluation needs of an observation normaliser."""

    mean: np.ndarray
    scale: np.ndarray
    clip: float | None
    enabled: bool = True


def evaluate_run(run: str | Path, *, num_episodes: int | None = None, seed: int | None = None) -> Evaluation:
    """Noise-free episodes of the run's policy; by default those of training after the checkpoint's epoch."""
    config = read_config(run)
    folder = newest_checkpoint(run)
    policy = load_policy(folder)
    evaluator = Evaluator(config.env_id, seed=config.seed if seed is None else seed)
    try:
        sizes = evaluator.environment.observation_size, evaluator.environment.action_size
        if sizes != (policy.obs_size, policy.action_size):
            raise CheckpointError(
                f"{folder} was trained on {policy.obs_size} observations and {policy.action_size} actions;"
                f" {config.env_id} has {sizes[0]} and {sizes[1]}"
            )
        return evaluator.evaluate(
            policy.actor,
            FrozenNormaliser(policy.shift, policy.scale, policy.clip),
            epoch=check(folder)["epoch"],
            num_episodes=num_episodes or config.eval_episodes,
        )
    finally:
        evaluator.close()
