"""Data collection: environments, normalisation, collection, advantages, evaluation, video.

Importing this package registers the project's own tasks with Gymnasium under `trpl/`.
"""

from trpl.messages import needs

with needs("train"):
    from trpl.rollouts.advantages import generalised_advantages
    from trpl.rollouts.collection import Collector, Rollout
    from trpl.rollouts.environments import Environment, make_environment
    from trpl.rollouts.evaluation import Evaluation, Evaluator
    from trpl.rollouts.lanes import Actor
    from trpl.rollouts.normalisation import ObservationNormaliser, RewardNormaliser
    from trpl.rollouts.task_spec import Task, is_local, register_local
    from trpl.rollouts.tasks import register_tasks

__all__ = [
    "Actor",
    "Collector",
    "Environment",
    "Evaluation",
    "Evaluator",
    "ObservationNormaliser",
    "RewardNormaliser",
    "Rollout",
    "Task",
    "generalised_advantages",
    "is_local",
    "make_environment",
    "register_local",
]

register_tasks()
