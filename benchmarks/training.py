"""Training against Stable-Baselines3, SBX and the bare simulator, on one core with one thread.

    python benchmarks/training.py [--quick] [--only simulator] [--out FILE.json]

Each measurement runs in a process of its own, pinned to one core. Rates are environment steps per second of processor
time (on an idle core the same as wall clock, and fair on a busy one), compile time excluded and reported apart. The
measurements a ratio is made of are taken in turns, and the best of each counts, since anything else on the machine can
only slow one down. *By the clock* is wall clock: `clock` and `cores` want an idle machine. For `cores` two processes
train epoch by epoch in turns; the ratio is the median over the pairs of epochs in which the hypervisor stole little
(`/proc/stat`), and the median over all pairs is printed too.
"""

import argparse
import itertools
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection
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
    from trpl.policies.acting import make_actor
    from trpl.presets import preset
    from trpl.runs.trainer import Trainer

    config = preset(method, env_id, **overrides)
    with Trainer(config, Path()) as trainer:
        collecting, learning = [], []
        for epoch in range(epochs + 1):
            start = time.process_time()
            steps = config.rollout_size // config.num_envs
            rollout = trainer.collector.collect(
                make_actor(trainer.state.policy, trainer.head), num_steps=steps, iteration=epoch
            )
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
    from trpl.policies.heads import GaussianHead
    from trpl.presets import preset

    seconds = []
    for policy_epochs in (10, 20):
        config = preset(method, "HalfCheetah-v4", policy_epochs=policy_epochs, **overrides)
        algorithm = make_algorithm(config, obs_size=17, head=GaussianHead(6))
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
    """From `trpl train` to the first line of metrics, with nothing compiled and then once more; the memory of a run."""
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {"XDG_CACHE_HOME": folder, "JAX_COMPILATION_CACHE_DIR": f"{folder}/compiled"}
        seconds = [start_of_a_run(Path(folder, name), environment) for name in ("cold", "again", "third", "fourth")]
    megabytes = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    return {"seconds": seconds[0], "again": min(seconds[1:]), "megabytes": megabytes}


def by_the_clock(method: str, env_id: str, *, epochs: int, overrides: dict[str, Any]) -> dict[str, float]:
    """Seconds of wall clock per epoch of `trpl train` as it stands, by what they go to; compilation left out."""
    from trpl.presets import preset
    from trpl.runs.run import train

    config = preset(method, env_id, **overrides)
    config = preset(method, env_id, stop_after=epochs * config.rollout_size, **overrides)
    with tempfile.TemporaryDirectory() as folder:
        train(config, Path(folder, "run"), progress=False)
        lines = [json.loads(line) for line in Path(folder, "run", "timings.jsonl").read_text().splitlines()]
    training = statistics.median(line["collecting"] + line["updating"] for line in lines[1:])
    evaluations = [line["evaluating"] for line in lines if line["evaluating"] > 0.01]
    share = sum(config.evaluates(epoch) for epoch in range(1, config.num_epochs + 1)) / config.num_epochs
    evaluating = share * statistics.median(evaluations) if evaluations else 0.0
    rate = config.rollout_size / (training + evaluating)
    return {"steps_per_second": rate, "evaluating": evaluating / (training + evaluating)}


def in_turns(method: str, env_id: str, *, epochs: int, overrides: dict[str, Any]) -> dict[str, Any]:
    """Print the seconds of each epoch of `trpl train` without evaluations, and wait for a line before the next one."""
    from trpl.presets import preset
    from trpl.runs.run import train

    def hand_over(_: int, scalars: dict[str, Any]) -> None:
        print(scalars["collecting"] + scalars["updating"], flush=True)
        sys.stdin.readline()

    size = preset(method, env_id, **overrides).rollout_size
    config = preset(method, env_id, stop_after=epochs * size, eval_every=0, **overrides)
    with tempfile.TemporaryDirectory() as folder:
        result = train(config, Path(folder, "run"), progress=False, callbacks=[hand_over])
    return {"digest": result.digest, "rollout_size": size}


def start_of_a_run(folder: Path, environment: dict[str, str]) -> float:
    """Seconds from the command to the first line of metrics of 20 epochs."""
    command = [sys.executable, "-m", "trpl.cli", "train", "kl", "HalfCheetah-v4", "--quiet", "--out", str(folder)]
    command += ["--steps", str(2048 * 20), "--eval-every", "100", "--eval-episodes", "1"]
    start = time.perf_counter()
    process = subprocess.Popen(command, env=environment)
    metrics, seconds = folder / "metrics.jsonl", float("nan")
    while process.poll() is None:
        if metrics.exists() and metrics.stat().st_size:
            seconds = time.perf_counter() - start
            break
        time.sleep(0.01)
    process.wait()
    return seconds


MEASUREMENTS: dict[str, Callable[..., dict[str, float]]] = {
    "bare": bare,
    "ours": ours,
    "learner": learner,
    "library": library,
    "first_update": first_update,
    "by_the_clock": by_the_clock,
    "in_turns": in_turns,
}


def started(name: str, *arguments: Any, cores: int = 1, **options: Any) -> subprocess.Popen:
    """A fresh process with a measurement, on the last so many cores."""
    allowed = sorted(os.sched_getaffinity(0))[-cores:]
    return subprocess.Popen(
        [sys.executable, __file__, "--job", json.dumps([name, arguments, options])],
        env=os.environ | ONE_THREAD,
        preexec_fn=lambda: os.sched_setaffinity(0, allowed),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def measure(name: str, *arguments: Any, **options: Any) -> dict[str, Any]:
    """One measurement in a fresh process."""
    process = started(name, *arguments, **options)
    printed, _ = process.communicate()
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, process.args)
    return json.loads(printed.splitlines()[-1])


def best(found: list[dict[str, float]], key: str = "steps_per_second") -> float:
    return max(result[key] for result in found)


def row(what: str, value: float, bar: float, *, at_least: bool = True, unit: str = "") -> dict[str, Any]:
    return {"what": what, "value": value, "bar": bar, "unit": unit, "met": value >= bar if at_least else value <= bar}


CHEETAH, HUMANOID = "HalfCheetah-v4", "trpl/HumanoidPaper-v4"
SHARES = {CHEETAH: 0.70, "Hopper-v4": 0.85, "Ant-v4": 0.85, HUMANOID: 0.7}  # training ÷ simulator
QUIET = 0.03  # largest share of an epoch that may be stolen for it to count
Found = dict[str, list[dict[str, float]]]


def add(found: Found, label: str, *job: Any, **options: Any) -> None:
    """Measure, and say so."""
    found.setdefault(label, []).append(measure(*job, **options))
    print(f"  {label}: {found[label][-1]}", file=sys.stderr, flush=True)


def simulator(found: Found, *, rounds: int, tasks: Collection[str]) -> list[dict[str, Any]]:
    """Steps per second of training over those of `gym.make` alone."""
    for _ in range(rounds):
        for task in tasks:
            add(found, f"bare {task}", "bare", task, num_steps=20_000 if task == CHEETAH else 5_000)
            add(found, f"kl {task}", "ours", "kl", task, epochs=8 if task == CHEETAH else 3, overrides={})
    shares = {task: best(found[f"kl {task}"]) / best(found[f"bare {task}"]) for task in tasks}
    return [row(f"share of the simulator, {task}", share, SHARES[task]) for task, share in shares.items()]


def libraries(found: Found, *, rounds: int, tasks: Collection[str]) -> list[dict[str, Any]]:
    """Steps per second of training over those of other libraries."""
    for _ in range(rounds):
        add(found, f"kl {CHEETAH}", "ours", "kl", CHEETAH, epochs=8, overrides={})
        add(found, f"ppo {CHEETAH}", "ours", "ppo-m", CHEETAH, epochs=8, overrides=SB3_DEFAULTS)
        add(found, f"SB3 PPO {CHEETAH}", "library", "sb3", CHEETAH, epochs=2)
        add(found, f"SBX PPO {CHEETAH}", "library", "sbx", CHEETAH, epochs=2)
    kl, ppo, sb3, sbx = (best(found[f"{name} {CHEETAH}"]) for name in ("kl", "ppo", "SB3 PPO", "SBX PPO"))
    return [
        row("kl ÷ SB3 PPO at its defaults, HalfCheetah", kl / sb3, 5.0, unit="×"),
        row("ppo ÷ SB3 PPO, same hyperparameters", ppo / sb3, 6.0, unit="×"),
        row("ppo ÷ SBX PPO, same hyperparameters", ppo / sbx, 4.0, unit="×"),
    ]


def clock(found: Found, *, rounds: int, tasks: Collection[str]) -> list[dict[str, Any]]:
    """Steps per second by the clock with the evaluations of the default, over Stable-Baselines3's PPO without any."""
    for _ in range(rounds):
        add(found, f"bare {CHEETAH}", "bare", CHEETAH, num_steps=20_000)
        add(found, f"kl by the clock {CHEETAH}", "by_the_clock", "kl", CHEETAH, epochs=31, overrides={})
        add(found, f"SB3 PPO {CHEETAH}", "library", "sb3", CHEETAH, epochs=2)
    bare, kl, sb3 = (best(found[f"{name} {CHEETAH}"]) for name in ("bare", "kl by the clock", "SB3 PPO"))
    evaluating = min(result["evaluating"] for result in found[f"kl by the clock {CHEETAH}"])
    return [
        row("kl ÷ SB3 PPO, evaluations included", kl / sb3, 7.0, unit="×"),
        row("kl ÷ bare env.step, evaluations included", kl / bare, 0.5),
        row("share of the time that evaluations take", evaluating, 0.2, at_least=False),
    ]


def stolen() -> float:
    """Seconds that the hypervisor has taken from this machine's cores since its start; 0 if that is not known."""
    try:
        fields = Path("/proc/stat").read_text().splitlines()[0].split()
    except OSError:  # not Linux
        return 0.0
    return int(fields[8]) / os.sysconf("SC_CLK_TCK")


def cores(found: Found, *, rounds: int, tasks: Collection[str]) -> list[dict[str, Any]]:
    """One Humanoid run on two cores over the same on one, by the clock, and whether both give the same bits."""
    epochs = 1 + 7 * rounds
    ways = {"sync": 1, "threads": 2}
    processes = [
        started(
            *("in_turns", "kl", HUMANOID),
            epochs=epochs,
            overrides={"num_envs": 8, "vectorisation": way},
            cores=number,
        )
        for way, number in ways.items()
    ]
    ends = [(process.stdin, process.stdout) for process in processes]
    seconds: list[list[float]] = []
    losses: list[float] = []  # per pair of epochs, the larger share of their time that was stolen
    for epoch in range(epochs):
        seconds.append([])
        losses.append(0.0)
        for given, printed in ends:
            assert given is not None
            assert printed is not None
            before = stolen()
            if epoch:
                print(file=given, flush=True)
            seconds[-1].append(float(printed.readline()))
            losses[-1] = max(losses[-1], (stolen() - before) / seconds[-1][-1])
        one, two = seconds[-1]
        print(
            f"  an epoch: sync {one:.2f} s, threads {two:.2f} s, stolen {losses[-1]:.1%}", file=sys.stderr, flush=True
        )
    last = [json.loads(process.communicate("\n")[0]) for process in processes]
    for k, way in enumerate(ways):
        found[way] = [{"steps_per_second": last[k]["rollout_size"] / epoch[k]} for epoch in seconds[1:]]
    ratios = [one / two for one, two in seconds[1:]]
    quiet = [ratio for ratio, loss in zip(ratios, losses[1:], strict=True) if loss <= QUIET]
    print(f"  all {len(ratios)} pairs of epochs: {statistics.median(ratios):.2f}; {len(quiet)} quiet", file=sys.stderr)
    different = len({result["digest"] for result in last}) - 1
    return [
        row("Humanoid, 8 environments: two cores ÷ one", statistics.median(quiet or ratios), 1.6, unit="×"),
        row("their results, different bits", different, 0, at_least=False),
    ]


def updates(found: Found, *, rounds: int, tasks: Collection[str]) -> list[dict[str, Any]]:
    """Time of a policy update."""
    add(found, "learner kl", "learner", "kl", overrides={})
    add(found, "learner kl contextual", "learner", "kl", overrides={"contextual": True})
    plain, contextual = (found[label][0]["microseconds"] for label in ("learner kl", "learner kl contextual"))
    return [
        row("policy update, kl", plain, 90, at_least=False, unit="µs"),
        row("policy update, kl contextual", contextual, 150, at_least=False, unit="µs"),
    ]


def starts(found: Found, *, rounds: int, tasks: Collection[str]) -> list[dict[str, Any]]:
    """Time to the first update, and memory."""
    add(found, "first update", "first_update")
    result = found["first update"][0]
    return [
        row("command to first update", result["seconds"], 15, at_least=False, unit="s"),
        row("the same, compiled before", result["again"], 3, at_least=False, unit="s"),
        row("memory of a HalfCheetah run", result["megabytes"], 700, at_least=False, unit="MB"),
    ]


PARTS = {
    "libraries": libraries,
    "simulator": simulator,
    "clock": clock,
    "cores": cores,
    "updates": updates,
    "starts": starts,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="write everything measured as JSON")
    parser.add_argument("--quick", action="store_true", help="one round, HalfCheetah only")
    parser.add_argument("--only", choices=PARTS, action="append", help="measure this part; may be given again")
    parser.add_argument("--job", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.job:
        name, arguments, options = json.loads(args.job)
        print(json.dumps(MEASUREMENTS[name](*arguments, **options)))
        return
    found: Found = {}
    rounds, tasks = (1, [CHEETAH]) if args.quick else (3, list(SHARES))
    table = [line for name in args.only or PARTS for line in PARTS[name](found, rounds=rounds, tasks=tasks)]
    rates = {label: best(results) for label, results in found.items() if "steps_per_second" in results[0]}
    for line in table:
        sign = "ok " if line["met"] else "NOT"
        print(f"{sign}  {line['what']:<45} {line['value']:>9.2f} {line['unit']:<2}  bar {line['bar']:g}")
    for label, value in rates.items():
        print(f"     {label:<45} {value:>9.0f} steps/s")
    if args.out:
        args.out.write_text(json.dumps({"table": table, "rates": rates, "measurements": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
