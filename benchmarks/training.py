"""Training against Stable-Baselines3, SBX and the bare simulator, on one core with one thread.

    python benchmarks/training.py [--quick] [--out FILE.json]

Each measurement runs in a process of its own, pinned to one core. Rates are environment steps per second of processor
time (on an idle core the same as wall clock, and fair on a busy one), compile time excluded and reported apart. The
measurements a ratio is made of are taken in turns, and the best of each counts, since anything else on the machine can
only slow one down.
"""

import argparse
import itertools
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false",
    "PYTHONWARNINGS": "ignore",
}
SB3_DEFAULTS = {  # of stable_baselines3.PPO, in this project's words
    "rollout_size": 2048,
    "minibatch_size": 64,
    "policy_epochs": 10,
    "value_epochs": 10,
    "learning_rate": 3e-4,
    "learning_rate_vf": 3e-4,
    "gradient_clip": 0.5,
    "normalise_observations": False,
}


def bare(env_id: str, *, num_steps: int) -> dict[str, float]:
    """Nothing but env.step with Gaussian actions drawn beforehand."""
    import gymnasium as gym
    import numpy as np

    import trpl.rollouts  # noqa: F401  registers the project's tasks

    env = gym.make(env_id)
    shape = (num_steps, *env.action_space.shape)
    actions = np.random.default_rng(0).standard_normal(shape, dtype=np.float32)
    env.reset(seed=0)
    best = float("inf")
    for _ in range(3):
        start = time.process_time()
        for action in actions:
            _, _, terminated, truncated, _ = env.step(action)
            if terminated or truncated:
                env.reset()
        best = min(best, time.process_time() - start)
    return {"steps_per_second": num_steps / best}


def ours(method: str, env_id: str, *, epochs: int, overrides: dict[str, Any]) -> dict[str, float]:
    """Collect and learn as in training, without evaluations; the first epoch holds the compilation."""
    import jax
    import numpy as np

    from trpl.algorithms import Batch
    from trpl.policies.acting import Actor
    from trpl.presets import preset
    from trpl.runs.trainer import Trainer

    config = preset(method, env_id, **overrides)
    with Trainer(config, Path()) as trainer:
        collecting, learning = [], []
        for epoch in range(epochs + 1):
            start = time.process_time()
            steps = config.rollout_size // config.num_envs
            rollout = trainer.collector.collect(Actor(trainer.state.policy), num_steps=steps, iteration=epoch)
            between = time.process_time()
            rng = np.random.default_rng([config.seed, epoch])
            trainer.state, metrics = trainer.algorithm.update(trainer.state, Batch.of(rollout), rng)
            jax.device_get(metrics)
            collecting.append(between - start)
            learning.append(time.process_time() - between)
    per_epoch = min(c + u for c, u in zip(collecting[1:], learning[1:], strict=True))
    return {
        "steps_per_second": config.rollout_size / per_epoch,
        "collect_seconds": min(collecting[1:]),
        "learn_seconds": min(learning[1:]),
        "compile_seconds": learning[0] - min(learning[1:]),
    }


def learner(method: str, *, overrides: dict[str, Any]) -> dict[str, float]:
    """Microseconds per policy update: the difference that ten more policy epochs make, on HalfCheetah's sizes."""
    import jax
    import numpy as np

    from trpl.algorithms import Batch, make_algorithm
    from trpl.presets import preset

    seconds = []
    for policy_epochs in (10, 20):
        config = preset(method, "HalfCheetah-v4", policy_epochs=policy_epochs, **overrides)
        algorithm = make_algorithm(config, obs_size=17, action_size=6)
        rng = np.random.default_rng(0)
        x = rng.standard_normal((config.rollout_size, 1, 17), dtype=np.float32)
        rewards = rng.standard_normal((config.rollout_size, 1), dtype=np.float32)
        actions = rng.standard_normal((config.rollout_size, 1, 6), dtype=np.float32)
        ends = np.zeros((config.rollout_size, 1), bool)
        batch = Batch(x, x, actions, rewards, ends, ends)
        state, times = jax.jit(algorithm.init)(jax.random.key(0)), []
        for _ in range(16):
            start = time.process_time()
            state, metrics = algorithm.update(state, batch, rng)
            jax.block_until_ready(metrics)
            times.append(time.process_time() - start)
        seconds.append(min(times[1:]))
    updates = 10 * config.rollout_size / config.minibatch_size
    return {"microseconds": (seconds[1] - seconds[0]) / updates * 1e6}


def library(name: str, env_id: str, *, epochs: int) -> dict[str, float]:
    """PPO of another library at its defaults; the first rollouts (compilation, warm-up) are not counted."""
    import gymnasium as gym

    if name == "sb3":
        import torch
        from stable_baselines3 import PPO
        from stable_baselines3.common.callbacks import BaseCallback

        torch.set_num_threads(1)
        options = {"device": "cpu"}
    else:
        from sbx import PPO
        from stable_baselines3.common.callbacks import BaseCallback

        options = {}
    starts: list[float] = []

    class Clock(BaseCallback):
        def _on_step(self) -> bool:
            return True

        def _on_rollout_start(self) -> None:
            starts.append(time.process_time())

    model = PPO("MlpPolicy", gym.make(env_id), seed=0, verbose=0, **options)
    model.learn(2048 * (epochs + 2), callback=Clock())
    return {"steps_per_second": 2048 / min(b - a for a, b in itertools.pairwise(starts))}


def first_update() -> dict[str, float]:
    """From `trpl train` to the first line of metrics, and the memory of the run."""
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        command = [
            sys.executable,
            "-m",
            "trpl.cli",
            "train",
            "kl",
            "HalfCheetah-v4",
            "--quiet",
            "--out",
            f"{folder}/run",
        ]
        process = subprocess.Popen([*command, "--steps", str(2048 * 20), "--eval-every", "100", "--eval-episodes", "1"])
        metrics, seconds = Path(folder) / "run" / "metrics.jsonl", float("nan")
        while process.poll() is None:
            if metrics.exists() and metrics.stat().st_size:
                seconds = time.perf_counter() - start
                break
            time.sleep(0.01)
        process.wait()
    return {"seconds": seconds, "megabytes": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024}


MEASUREMENTS: dict[str, Callable[..., dict[str, float]]] = {
    "bare": bare,
    "ours": ours,
    "learner": learner,
    "library": library,
    "first_update": first_update,
}


def measure(name: str, *arguments: Any, **options: Any) -> dict[str, float]:
    """One measurement in a fresh process on one core."""
    core = max(os.sched_getaffinity(0))
    job = json.dumps([name, arguments, options])
    done = subprocess.run(
        [sys.executable, __file__, "--job", job],
        env=os.environ | ONE_THREAD,
        preexec_fn=lambda: os.sched_setaffinity(0, {core}),
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


def best(found: list[dict[str, float]], key: str = "steps_per_second") -> float:
    return max(result[key] for result in found)


def row(what: str, value: float, bar: float, *, at_least: bool = True, unit: str = "") -> dict[str, Any]:
    return {"what": what, "value": value, "bar": bar, "unit": unit, "met": value >= bar if at_least else value <= bar}


def compare(*, rounds: int, epochs: int, tasks: tuple[str, ...]) -> dict[str, Any]:
    """The table of bars; everything measured stands beside it."""
    cheetah = "HalfCheetah-v4"
    found: dict[str, list[dict[str, float]]] = {}

    def add(label: str, *job: Any, **options: Any) -> None:
        found.setdefault(label, []).append(measure(*job, **options))
        print(f"  {label}: {found[label][-1]}", file=sys.stderr, flush=True)

    for _ in range(rounds):
        add("bare " + cheetah, "bare", cheetah, num_steps=20_000)
        add("kl " + cheetah, "ours", "kl", cheetah, epochs=epochs, overrides={})
        add("ppo " + cheetah, "ours", "ppo-m", cheetah, epochs=epochs, overrides=SB3_DEFAULTS)
        add("SB3 PPO " + cheetah, "library", "sb3", cheetah, epochs=2)
        add("SBX PPO " + cheetah, "library", "sbx", cheetah, epochs=2)
        for env_id in tasks:
            add("bare " + env_id, "bare", env_id, num_steps=5_000)
            add("kl " + env_id, "ours", "kl", env_id, epochs=3, overrides={})
    add("learner kl", "learner", "kl", overrides={})
    add("learner kl contextual", "learner", "kl", overrides={"contextual": True})
    add("first update", "first_update")

    rate = {label: best(results) for label, results in found.items() if "steps_per_second" in results[0]}
    sb3, sbx = rate["SB3 PPO " + cheetah], rate["SBX PPO " + cheetah]
    table = [
        row("kl ÷ SB3 PPO at its defaults, HalfCheetah", rate["kl " + cheetah] / sb3, 5.0, unit="×"),
        row("ppo ÷ SB3 PPO, same hyperparameters", rate["ppo " + cheetah] / sb3, 6.0, unit="×"),
        row("ppo ÷ SBX PPO, same hyperparameters", rate["ppo " + cheetah] / sbx, 4.0, unit="×"),
        row("share of the simulator, HalfCheetah", rate["kl " + cheetah] / rate["bare " + cheetah], 0.5),
        *(row(f"share of the simulator, {e}", rate["kl " + e] / rate["bare " + e], 0.7) for e in tasks),
        row("policy update, kl", found["learner kl"][0]["microseconds"], 90, at_least=False, unit="µs"),
        row(
            "policy update, kl contextual",
            found["learner kl contextual"][0]["microseconds"],
            150,
            at_least=False,
            unit="µs",
        ),
        row("command to first update", found["first update"][0]["seconds"], 15, at_least=False, unit="s"),
        row("memory of a HalfCheetah run", found["first update"][0]["megabytes"], 700, at_least=False, unit="MB"),
    ]
    return {"table": table, "rates": rate, "measurements": found}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="write everything measured as JSON")
    parser.add_argument("--quick", action="store_true", help="one round, HalfCheetah only")
    parser.add_argument("--job", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.job:
        name, arguments, options = json.loads(args.job)
        print(json.dumps(MEASUREMENTS[name](*arguments, **options)))
        return
    tasks = () if args.quick else ("Ant-v4", "trpl/HumanoidPaper-v4")
    result = compare(rounds=1 if args.quick else 3, epochs=8, tasks=tasks)
    for line in result["table"]:
        sign = "ok " if line["met"] else "NOT"
        print(f"{sign}  {line['what']:<45} {line['value']:>9.2f} {line['unit']:<2}  bar {line['bar']:g}")
    for label, value in result["rates"].items():
        print(f"     {label:<45} {value:>9.0f} steps/s")
    if args.out:
        args.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
