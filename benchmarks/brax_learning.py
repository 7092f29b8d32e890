"""Brax's PPO through a trust region beside Brax's PPO: evaluation return on two of its tasks, three seeds each.

    python benchmarks/brax_learning.py [--task fast]

Needs `pip install "trpl[brax]"`, which takes a JAX of its own: `make hosts` sets one up in build/hosts/brax.
"""

import argparse
import contextlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from brax import envs
from brax.training.agents.ppo import train as ppo

from trpl.integrations.brax import trust_region

COMMON = {"num_envs": 64, "batch_size": 64, "num_minibatches": 8, "num_updates_per_batch": 4, "num_evals": 2}
COMMON |= {"learning_rate": 3e-4, "entropy_cost": 1e-2, "discounting": 0.95, "normalize_observations": True}
COMMON |= {"reward_scaling": 10}


class Contest(NamedTuple):
    """A task, how Brax trains on it, and the bounds that were chosen for it."""

    make: dict[str, Any]
    settings: dict[str, Any]
    bounds: dict[str, float]


CONTESTS = {
    "fast": Contest(
        {}, {"num_timesteps": 2**15, "episode_length": 128, "unroll_length": 5}, {"mean_bound": 0.03, "cov_bound": 1e-3}
    ),
    "inverted_pendulum": Contest(
        {"backend": "spring"},
        {"num_timesteps": 2**18, "episode_length": 200, "unroll_length": 10},
        {"mean_bound": 0.03, "cov_bound": 1e-3},
    ),
}


@contextlib.contextmanager
def clip() -> Iterator[None]:
    """Brax's PPO as it is."""
    yield


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", choices=CONTESTS, action="append")
    parser.add_argument("--seeds", type=int, default=3)
    args = parser.parse_args()
    for task in args.task or CONTESTS:
        make, settings, bounds = CONTESTS[task]
        for name, context in (("PPO", clip()), ("TRPL", trust_region(**bounds))):
            found = []
            with context:
                for seed in range(args.seeds):
                    environment = envs.get_environment(task, **make)
                    metrics = ppo.train(environment, seed=seed, **COMMON | settings)[2]
                    found.append(float(metrics["eval/episode_reward"]))
            words = ", ".join(f"{value:.1f}" for value in found)
            print(f"{task} {name}: {words}; mean {np.mean(found):.1f}", flush=True)
        print(f"{task}: TRPL with {bounds}", flush=True)


if __name__ == "__main__":
    main()
