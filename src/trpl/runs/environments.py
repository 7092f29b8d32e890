"""The environments of a run: where it collects, and where it is evaluated."""

from trpl.rollouts import Collector, Evaluator, Task
from trpl.settings import Config


def task_of(config: Config) -> Task:
    """Describe the task of a configuration.

    Args:
        config: The settings of a run.

    Returns:
        The environment's name and arguments, and how actions reach it.
    """
    return Task(config.env_id, config.env_kwargs, config.action_units, config.clip_actions, config.policy)


def make_collector(config: Config) -> Collector:
    """Make the collector of a configuration."""
    return Collector(
        task_of(config),
        num_envs=config.num_envs,
        vectorisation=config.vectorisation,
        seed=config.seed,
        discount=config.discount,
        normalise_observations=config.normalise_observations,
        observation_clip=config.observation_clip,
        normalise_rewards=config.normalise_rewards,
        reward_clip=config.reward_clip,
        released_variance=config.released_variance,
    )


def make_evaluator(config: Config) -> Evaluator:
    """Make the evaluator of a configuration.

    Args:
        config: The settings of a run.

    Returns:
        The evaluator; close it when it is no longer needed.

    Raises:
        UnknownEnvironmentError: There is no environment of that name.
        FaultyEnvironmentError: It cannot be made.
    """
    return Evaluator(task_of(config), seed=config.seed, released=config.released_evaluation)
