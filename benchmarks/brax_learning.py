"""Brax's PPO through a trust region beside Brax's PPO: evaluation return on two of its tasks, three seeds each.

    python benchmarks/brax_learning.py [--task fast] [--out results/hosts/brax.json]

A line per seed; each compiles anew, which is most of the time. Needs `pip install "trpl[brax]"`, which takes a JAX of
its own: `make hosts` sets one up in build/hosts/brax.
"""

import argparse
import contextlib
import json
import time
from collections.abc import Iterator
from pathlib import Path
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
        {},
        {"num_timesteps": 2**17, "episode_length": 128, "unroll_length": 5},
        {"mean_bound": 0.3, "cov_bound": 0.03, "regression_weight": 1.0},
    ),
    "inverted_pendulum": Contest(
        {"backend": "spring"},
        {"num_timesteps": 2**17, "episode_length": 200, "unroll_length": 10},
        {"mean_bound": 0.3, "cov_bound": 0.03, "regression_weight": 1.0},
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
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--only", choices=("PPO", "TRPL"))
    parser.add_argument("--bounds", type=float, nargs=2, metavar=("MEAN", "COV"), help="try others than those chosen")
    parser.add_argument("--weight", type=float, help="try another regression weight")
    parser.add_argument("--out", type=Path, help="write the returns as JSON")
    args = parser.parse_args()
    found = json.loads(args.out.read_text()) if args.out and args.out.exists() else {}
    for task in args.task or CONTESTS:
        make, settings, region = CONTESTS[task]
        region = region | (dict(zip(("mean_bound", "cov_bound"), args.bounds, strict=True)) if args.bounds else {})
        region = region | ({"regression_weight": args.weight} if args.weight else {})
        row = found.setdefault(task, {"settings": COMMON | settings, "trust_region": region, "PPO": {}, "TRPL": {}})
        for name, context in (("PPO", clip()), ("TRPL", trust_region(**region))):
            if args.only not in (None, name):
                continue
            with context:
                for seed in range(args.first_seed, args.first_seed + args.seeds):
                    started = time.perf_counter()
                    environment = envs.get_environment(task, **make)
                    metrics = ppo.train(environment, seed=seed, **COMMON | settings)[2]
                    row[name][str(seed)] = round(float(metrics["eval/episode_reward"]), 2)
                    seconds = time.perf_counter() - started
                    print(f"{task} {name} seed {seed}: {row[name][str(seed)]:.1f} in {seconds:.0f} s", flush=True)
                    if args.out:
                        args.out.write_text(json.dumps(found, indent=2) + "\n")
            print(f"{task} {name}: mean {np.mean(list(row[name].values())):.1f}", flush=True)


if __name__ == "__main__":
    main()
