"""Evaluation of a run's policy."""

from contextlib import closing
from functools import partial
from pathlib import Path

from trpl.errors import CheckpointError, ConfigError
from trpl.policies.acting import load_policy
from trpl.policies.normaliser import standardise
from trpl.policies.storage import check
from trpl.rollouts.evaluation import Evaluation, Evaluator
from trpl.runs.environments import task_of
from trpl.runs.folder import locate, read_config


def evaluate_run(path: str | Path, *, num_episodes: int | None = None, seed: int | None = None) -> Evaluation:
    """Run noise-free episodes of a trained policy.

    Args:
        path: A run folder (for its newest checkpoint), a checkpoint folder, or RUN/best.
        num_episodes: How many; as many as in training by default.
        seed: A seed for other initial states than those of training after the checkpoint's epoch.

    Returns:
        Return and length of each episode.

    Raises:
        ConfigError: The number of episodes is below 1, or the seed below 0.
        RunError: The path is not in a run.
        CheckpointError: There is no sound checkpoint, or its policy does not fit the environment.
    """
    if num_episodes is not None and num_episodes < 1:
        raise ConfigError(f"the number of episodes must be at least 1, not {num_episodes}")
    run, checkpoint = locate(path)
    config, policy = read_config(run), load_policy(checkpoint)
    with closing(Evaluator(task_of(config), seed=config.seed if seed is None else seed)) as evaluator:
        found = evaluator.environment
        sizes = found.observation_size, found.action_size
        if (*sizes, found.head.words) != (policy.obs_size, policy.action_size, policy.head.words):
            raise CheckpointError(
                f"{checkpoint} was trained on {policy.obs_size} observations and {policy.action_size} actions"
                f" ({policy.head.words}); {config.env_id} has {sizes[0]} and {sizes[1]} ({found.head.words})"
            )
        return evaluator.evaluate(
            policy.actor,
            partial(standardise, shift=policy.shift, scale=policy.scale, clip=policy.clip),
            epoch=check(checkpoint)["epoch"],
            num_episodes=config.eval_episodes if num_episodes is None else num_episodes,
        )
