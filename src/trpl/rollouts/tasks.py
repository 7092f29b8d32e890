"""The project's own tasks, by their Gymnasium names."""

import gymnasium as gym


def register_tasks() -> None:
    """Register the tasks under `trpl/`; the simulator is imported when one is made.

    The reacher has no time limit: it ends itself, in a true terminal state.
    """
    reacher, humanoid = "trpl.rollouts.reacher:SparseReacher", "trpl.rollouts.humanoid:PaperHumanoid"
    gym.register("trpl/Reacher5Sparse-v0", reacher, kwargs={"target_limit": 0.7})
    gym.register("trpl/Reacher5SparsePaper-v0", reacher, kwargs={"target_limit": 0.27})
    gym.register("trpl/EpisodicReacher5-v0", "trpl.rollouts.episodic:EpisodicReacher")
    gym.register("trpl/HumanoidPaper-v4", humanoid, max_episode_steps=1000)
