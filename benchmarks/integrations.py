"""The adapters beside their hosts: learning, speed, latency.

    python benchmarks/integrations.py learning [--task Pendulum-v1]
                                                   HalfCheetah-v4, TRPL and PPO in Stable-Baselines3, three seeds each
    python benchmarks/integrations.py speed        HalfCheetah-v5, steps per second, defaults of both
    python benchmarks/integrations.py latency      one action of an exported 64 × 64 policy
    python benchmarks/integrations.py speed latency --out bench/integrations.json

One thread; speed in processor time, TRPL and PPO by turns.
"""

import argparse
import json
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import VecNormalize

from trpl.integrations.sb3 import TRPL

PENDULUM = {"n_steps": 64, "gamma": 0.9, "gae_lambda": 0.95, "learning_rate": 1e-3, "batch_size": 128, "n_epochs": 10}


class Contest(NamedTuple):
    """Environments side by side, and what each algorithm is told beyond its defaults."""

    num_envs: int
    settings: dict[str, dict[str, Any]]


ALGORITHMS: dict[str, Any] = {"ppo": PPO, "trpl": TRPL}
CONTESTS = {
    "HalfCheetah-v4": Contest(1, {"ppo": {}, "trpl": {}}),  # both at their defaults
    "Pendulum-v1": Contest(16, {"ppo": PENDULUM, "trpl": PENDULUM | {"learning_rate_vf": 1e-3}}),
}


def learning(task: str, *, num_steps: int, num_seeds: int) -> None:
    """Noise-free return over 100 episodes after training; 64 × 64 networks, observations and rewards normalised."""
    found: dict[str, list[float]] = {name: [] for name in ALGORITHMS}
    for seed in range(num_seeds):
        for name in ALGORITHMS:
            started = time.perf_counter()
            found[name].append(return_of(name, task, seed=seed, num_steps=num_steps))
            print(f"{name:5} seed {seed}  {found[name][-1]:8.1f}  {time.perf_counter() - started:.0f} s", flush=True)
    for name, returns in found.items():
        print(f"{name:5} mean {np.mean(returns):8.1f}  over {num_seeds} seeds of {task}, {num_steps} steps")


def return_of(name: str, task: str, *, seed: int, num_steps: int) -> float:
    """What a policy scores after `num_steps`."""
    contest = CONTESTS[task]
    settings = contest.settings[name]
    env = VecNormalize(make_vec_env(task, n_envs=contest.num_envs, seed=seed), gamma=settings.get("gamma", 0.99))
    model = ALGORITHMS[name]("MlpPolicy", env, seed=seed, device="cpu", **settings).learn(num_steps)
    test = VecNormalize(make_vec_env(task, n_envs=20, seed=10_000 + seed), training=False, norm_reward=False)
    test.obs_rms = env.obs_rms
    return float(evaluate_policy(model, test, n_eval_episodes=100)[0])


def speed(*, num_rollouts: int = 1, repeats: int = 3) -> list[dict[str, Any]]:
    """Environment steps per second of processor time; per 2048 steps PPO makes 320 updates, TRPL 1280 + 640."""
    found = []
    for projection in ("kl", "w2", "frobenius"):
        models = [PPO("MlpPolicy", "HalfCheetah-v5", seed=0, device="cpu")]
        models.append(TRPL("MlpPolicy", "HalfCheetah-v5", projection=projection, seed=0, device="cpu"))
        rates: list[list[float]] = []
        for _ in range(repeats + 1):
            rates.append([])
            for model in models:
                started, steps = time.process_time(), num_rollouts * 2048
                model.learn(steps)
                rates[-1].append(steps / (time.process_time() - started))
        ppo, trpl = np.median(rates[1:], axis=0)  # the first round warms up
        print(f"{projection:10} PPO {ppo:6.0f}  TRPL {trpl:6.0f} steps/s  ratio {trpl / ppo:.2f}", flush=True)
        found.append(
            figure(f"TRPL {projection} ÷ PPO, steps per second, defaults of both", trpl / ppo, "×", 0.5, most=False)
        )
    return found


def figure(what: str, value: float, unit: str, bar: float, *, most: bool) -> dict[str, Any]:
    """A measurement with its bar: at most so much, or at least."""
    met = bool(value <= bar if most else value >= bar)
    return {"what": what, "value": float(value), "unit": unit, "bar": bar, "met": met}


def latency(*, num_calls: int = 20_000) -> list[dict[str, Any]]:
    """Time of one action in onnxruntime, normaliser included: one thread, 17 numbers in, 6 out."""
    from trpl.integrations.export import export
    from trpl.integrations.onnx import session

    env = VecNormalize(make_vec_env("HalfCheetah-v5"))
    model = TRPL("MlpPolicy", env, seed=0, device="cpu")
    with tempfile.TemporaryDirectory() as folder:
        run = session(export(model, Path(folder) / "policy.onnx", vec_normalize=env)).run
    observation = np.zeros((1, 17), np.float32)
    times = np.empty(num_calls)
    for i in range(num_calls):
        started = time.perf_counter()
        run(None, {"observation": observation})
        times[i] = time.perf_counter() - started
    microseconds = np.percentile(times * 1e6, [50, 95])
    print(f"onnxruntime, 64 × 64 policy: median {microseconds[0]:.1f} µs, 95th percentile {microseconds[1]:.1f} µs")
    return [
        figure("one action in onnxruntime, 64 × 64 policy, normaliser included", microseconds[0], "µs", 30.0, most=True)
    ]


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="+", choices=("learning", "speed", "latency"))
    parser.add_argument("--task", choices=CONTESTS, default="HalfCheetah-v4")
    parser.add_argument("--steps", type=int, default=200_000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, help="write the figures of speed and latency as JSON")
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", module="gymnasium")
    if "learning" in args.what:
        learning(args.task, num_steps=args.steps, num_seeds=args.seeds)
    found = [
        row for name, measure in (("speed", speed), ("latency", latency)) if name in args.what for row in measure()
    ]
    if args.out:
        args.out.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
