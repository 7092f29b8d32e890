"""The adapters for robot-learning hosts beside the hosts' own PPO. Each needs its host: pip install trpl[rsl_rl] …

    python benchmarks/hosts.py deviation   rsl_rl: a plain standard deviation under a large learning rate, as a curve
    python benchmarks/hosts.py speed       rsl_rl: processor time of an update, TRPL ÷ PPO
    python benchmarks/hosts.py learning --host skrl   Pendulum, TRPL and the host's PPO, three seeds; rl_games, rl_zoo3

One thread; TRPL and PPO by turns.
"""

import argparse
import contextlib
import importlib.util
import io
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import ModuleType

import numpy as np
import torch

ROOT = Path(__file__).parent.parent
TRPL = "trpl.integrations.rsl_rl:TRPL"


def example(name: str) -> ModuleType:
    """A file of `examples/` as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)  # type: ignore[arg-type]
    spec.loader.exec_module(module)  # type: ignore[union-attr]
    return module


def deviation(*, num_iterations: int, num_seeds: int, out: Path) -> None:
    """rsl_rl #124: `std_type: "scalar"`, learning rates 0.05 and 0.1; actions are to hit a point that is seen."""
    import matplotlib.pyplot as plt

    reach = example("rsl_rl_reach")

    class Aim(reach.Reach):
        def step(self, actions):
            rewards = -(actions - self.goal).square().sum(-1)
            self.position, self.goal = self.draw(), self.draw()
            ended = torch.ones(self.num_envs, dtype=torch.long)
            return self.get_observations(), rewards, ended, {}

    figure, axes = plt.subplots(1, 2, figsize=(8, 3), constrained_layout=True)
    for axis, (initial, rate) in zip(axes, ((0.1, 0.05), (1.0, 0.1)), strict=True):
        for name, color in (("PPO", "tab:red"), (TRPL, "tab:blue")):
            for seed in range(num_seeds):
                courses = deviations(reach, Aim, name, initial, rate, seed=seed, num_iterations=num_iterations)
                label = {0: "PPO" if name == "PPO" else "TRPL"}.get(seed)
                axis.plot(courses, color=color, alpha=0.7, label=label)
                print(f"{name[-4:]:>4} start {initial} rate {rate} seed {seed}: last {courses[-1]:.3g}", flush=True)
        axis.set(title=f"std {initial} at first, learning rate {rate}", xlabel="iteration", yscale="log")
    axes[0].set_ylabel("smallest standard deviation")
    axes[0].legend()
    figure.savefig(out, dpi=120)


def deviations(reach, task, name, initial, rate, *, seed, num_iterations) -> list[float]:
    """The smallest standard deviation after each iteration, as rsl_rl samples with it (at least 1e-6)."""
    settings = reach.configuration(name, learning_rate=rate)
    settings["actor"]["distribution_cfg"]["init_std"] = initial
    torch.manual_seed(seed)
    with contextlib.redirect_stdout(io.StringIO()):
        runner = reach.OnPolicyRunner(task(seed=seed), settings, device="cpu")
        course, update = [initial], runner.alg.update

        def watched():
            found = update()
            course.append(max(1e-6, runner.alg.actor.distribution.std_param.min().item()))
            return found

        runner.alg.update = watched
        runner.learn(num_iterations)
    return course


def speed(*, num_iterations: int, repeats: int) -> None:
    """Whole iterations, collection included, on a task that costs nothing: 256 × 24 steps, 128 × 128 networks."""
    reach = example("rsl_rl_reach")
    runners = {}
    for name in ("PPO", TRPL):
        settings = reach.configuration(name) | {"num_steps_per_env": 24}
        for part in ("actor", "critic"):
            settings[part]["hidden_dims"] = [128, 128]
        with contextlib.redirect_stdout(io.StringIO()):
            runners[name] = reach.OnPolicyRunner(reach.Reach(256), settings, device="cpu")
    rates: list[list[float]] = []
    for _ in range(repeats + 1):
        rates.append([])
        for runner in runners.values():
            started = time.process_time()
            runner.learn(num_iterations)
            rates[-1].append(num_iterations * 24 * 256 / (time.process_time() - started))
    ppo, trpl = np.median(rates[1:], axis=0)  # the first round warms up
    print(f"rsl_rl: PPO {ppo:.0f}, TRPL {trpl:.0f} steps per second of processor time, ratio {trpl / ppo:.2f}")


def learning(host: str, *, num_seeds: int, num_steps: int) -> None:
    """Pendulum through the host's own trainer: mean return without noise over 50 episodes, seed by seed."""
    task = example(f"{host}_pendulum")
    for agent in ("PPO", "TRPL"):
        found = []
        for seed in range(num_seeds):
            with contextlib.redirect_stdout(io.StringIO()):
                trained = task.train(agent, steps=num_steps, seed=seed)
            found.append(task.evaluate(trained))
            print(f"{host} {agent} seed {seed}: {found[-1]:.1f}", flush=True)
        print(f"{host} {agent}: mean {np.mean(found):.1f} of {num_seeds} seeds, {num_steps} steps", flush=True)


def zoo_learning(*, num_seeds: int, num_steps: int) -> None:
    """The same through rl_zoo3's command, whose PPO has its own tuned hyperparameters."""
    from rl_zoo3 import ALGOS
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.evaluation import evaluate_policy
    from stable_baselines3.common.vec_env import VecNormalize

    from trpl.integrations.rl_zoo3 import register

    register()
    for algo in ("ppo", "trpl"):
        found = []
        for seed in range(num_seeds):
            with tempfile.TemporaryDirectory() as folder:
                options = ["--algo", algo, "--env", "Pendulum-v1", "--seed", str(seed), "-f", folder]
                options += ["-n", str(num_steps), "--eval-freq", "-1", "--verbose", "0"]
                command = [sys.executable, "-W", "ignore", "-m", "trpl.integrations.rl_zoo3", "train", *options]
                subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
                saved = Path(folder) / algo / "Pendulum-v1_1"
                env = make_vec_env("Pendulum-v1", n_envs=10, seed=1000)
                statistics = saved / "Pendulum-v1" / "vecnormalize.pkl"
                if statistics.exists():
                    env = VecNormalize.load(str(statistics), env)
                    env.training = env.norm_reward = False
                model = ALGOS[algo].load(saved / "Pendulum-v1.zip", device="cpu")
                found.append(float(evaluate_policy(model, env, n_eval_episodes=50)[0]))
            print(f"rl_zoo3 {algo} seed {seed}: {found[-1]:.1f}", flush=True)
        print(f"rl_zoo3 {algo}: mean {np.mean(found):.1f} of {num_seeds} seeds, {num_steps} steps", flush=True)


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("deviation", "speed", "learning"))
    parser.add_argument("--host", choices=("skrl", "rl_games", "rl_zoo3"), default="skrl")
    parser.add_argument("--steps", type=int, default=80_000)
    parser.add_argument("--iterations", type=int, default=30)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=ROOT / "docs/images/rsl_rl_std.png")
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    if args.what == "deviation":
        deviation(num_iterations=args.iterations, num_seeds=args.seeds, out=args.out)
    elif args.what == "learning" and args.host == "rl_zoo3":
        zoo_learning(num_seeds=args.seeds, num_steps=args.steps)
    elif args.what == "learning":
        learning(args.host, num_seeds=args.seeds, num_steps=args.steps)
    else:
        speed(num_iterations=args.iterations // 6, repeats=3)


if __name__ == "__main__":
    main(sys.argv[1:])
