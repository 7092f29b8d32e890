"""Reference returns for the sparse reacher: no action, random actions, and a record in results/.

    python docs/make_reacher.py [EPISODES]

Writes docs/generated/reacher.md, which the page on results includes.
"""

import sys

import gymnasium as gym
import numpy as np
from table1 import RESULTS, ROOT

import trpl.rollouts  # noqa: F401  registers the task
from trpl.reports.reading import read_runs
from trpl.reports.scores import final_window

TASK, EPISODES = "trpl/Reacher5Sparse-v0", 200


def mean_return(*, std: float, episodes: int) -> float:
    """Mean return of Gaussian actions with this deviation around 0."""
    env, rng = gym.make(TASK), np.random.default_rng(0)
    returns = []
    for episode in range(episodes):
        env.reset(seed=episode)
        ended, total = False, 0.0
        while not ended:
            _, reward, terminated, truncated, _ = env.step(std * rng.standard_normal(5))
            ended, total = terminated or truncated, total + float(reward)
        returns.append(total)
    return float(np.mean(returns))


def text(episodes: int = EPISODES) -> str:
    run = read_runs([RESULTS / "reacher-first"])[0][0]
    window = final_window(run)
    assert window is not None
    lines = ["| policy | return |", "| --- | ---: |"]
    lines.append(f"| `kl` with a covariance per state, seed {run.seed}, last 20 evaluations | {window.mean():.1f} |")
    for words, std in (("no action", 0.0), ("random actions, standard deviation 1", 1.0)):
        lines.append(f"| {words}, {episodes} episodes | {mean_return(std=std, episodes=episodes):.1f} |")
    lines += ["", f"*`python docs/make_reacher.py`; record: `{run.command}`, commit {(run.commit or '–')[:8]}*", ""]
    return "\n".join(lines)


if __name__ == "__main__":
    made = text(*map(int, sys.argv[1:2]))
    (ROOT / "docs" / "generated" / "reacher.md").write_text(made, encoding="utf-8")
