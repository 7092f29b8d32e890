"""The adapters for robot-learning hosts beside the hosts' own PPO. Each needs its host: pip install trpl[rsl-rl] …

    python benchmarks/hosts.py deviation   rsl_rl: a plain standard deviation under a large learning rate, as a curve
    python benchmarks/hosts.py speed       rsl_rl: processor time of an update, TRPL ÷ PPO
    python benchmarks/hosts.py learning --host skrl   Pendulum, TRPL and the host's PPO, three seeds; rl_games, rl_zoo3
    python benchmarks/hosts.py tuning --host rl_games   as many settings of each, on the seeds 10, 11 and 12

`learning` writes the returns to results/hosts/HOST.json, and takes the best of the settings that `tuning` left there.
One thread.
"""

import argparse
import contextlib
import importlib.util
import io
import json
import subprocess
import sys
import tempfile
import time
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any

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


def as_published(host: str, task: ModuleType) -> dict[str, Any]:
    """Settings of the host's own example where they differ from ours; the network goes into the module `task`."""
    if host == "rl_games":  # configs/ppo_pendulum_torch.yaml
        glorot = {"name": "glorot_normal_initializer"}
        task.MLP = {"units": [32, 32], "activation": "elu", "initializer": glorot | {"gain": 2}}
        task.MEAN_INITIALIZER = glorot | {"gain": 0.01}
        return {}
    from skrl.resources.schedulers.torch import KLAdaptiveLR  # examples/gymnasium/torch_gymnasium_pendulum_ppo.py

    class Policy(task.Policy):
        def compute(self, inputs, role=""):
            mean, outputs = super().compute(inputs, role)
            return 2.0 * torch.tanh(mean / 2.0), outputs

    task.Policy, task.ACTIVATION = Policy, torch.nn.ReLU
    found = {"num_envs": 4, "rollouts": 1024, "mini_batches": 32, "grad_norm_clip": 0.5, "value_clip": 0.2}
    found |= {"learning_rate_scheduler": KLAdaptiveLR, "learning_rate_scheduler_kwargs": {"kl_threshold": 0.008}}
    return found


def learned(host: str, agent: str, *, seed: int, num_steps: int, settings: dict[str, Any]) -> float:
    """Train on Pendulum through the host's own trainer; the mean return without noise over 50 episodes."""
    method = agent.partition(",")[0]
    if host == "rl_zoo3":
        return zoo_learned(method, seed=seed, num_steps=num_steps)
    task = example(f"{host}_pendulum")
    settings = settings | (as_published(host, task) if agent.endswith(HOSTS_OWN) else {})
    with contextlib.redirect_stdout(io.StringIO()):
        trained = task.train(method, steps=num_steps, seed=seed, **settings)
    return task.evaluate(trained)


def zoo_learned(agent: str, *, seed: int, num_steps: int) -> float:
    """The same through rl_zoo3's command, whose PPO has its own tuned hyperparameters."""
    from rl_zoo3 import ALGOS
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.evaluation import evaluate_policy
    from stable_baselines3.common.vec_env import VecNormalize

    from trpl.integrations.rl_zoo3 import register

    register()
    algo = "trpl" if agent == "TRPL" else "ppo"
    with tempfile.TemporaryDirectory() as folder:
        options = ["--algo", algo, "--env", "Pendulum-v1", "--seed", str(seed), "-f", folder]
        options += ["-n", str(num_steps), "--eval-freq", "-1", "--verbose", "0", "--num-threads", "1"]
        command = [sys.executable, "-W", "ignore", "-m", "trpl.integrations.rl_zoo3", "train", *options]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        saved = Path(folder) / algo / "Pendulum-v1_1"
        env = make_vec_env("Pendulum-v1", n_envs=10, seed=1000)
        statistics = saved / "Pendulum-v1" / "vecnormalize.pkl"
        if statistics.exists():
            env = VecNormalize.load(str(statistics), env)
            env.training = env.norm_reward = False
        model = ALGOS[algo].load(saved / "Pendulum-v1.zip", device="cpu")
        return float(evaluate_policy(model, env, n_eval_episodes=50)[0])


HOSTS_OWN = ", settings of the host's own example"
TUNED = ", tuned"
AGENTS = {
    "skrl": ("PPO", "TRPL", f"PPO{HOSTS_OWN}"),
    "rl_games": ("PPO", "TRPL", f"PPO{TUNED}", f"TRPL{TUNED}", f"PPO{HOSTS_OWN}"),
    "rl_zoo3": (f"PPO{HOSTS_OWN}", "TRPL"),
}
FEW_STEPS = {"mini_epochs": 4, "minibatch_size": 1024, "lr_schedule": "adaptive"}  # as rl_games has them for PPO
TRIED: dict[str, dict[str, list[dict[str, Any]]]] = {
    "rl_games": {
        "PPO": [{}, {"mini_epochs": 10}, {"mini_epochs": 10, "minibatch_size": 256}],
        "TRPL": [
            {},
            FEW_STEPS,
            FEW_STEPS | {"trust_region": {"mean_bound": 0.3, "cov_bound": 0.03, "regression_weight": 1.0}},
        ],
    }
}
"""Settings that `tuning` compares: as many for each method."""
PACKAGES = {"skrl": "skrl", "rl_games": "rl-games", "rl_zoo3": "rl_zoo3"}


def kept(out: Path) -> dict[str, Any]:
    """What an earlier call has written."""
    return json.loads(out.read_text()) if out.exists() else {}


def tuning(host: str, *, seeds: range, num_steps: int, out: Path) -> None:
    """Compare settings of PPO and of TRPL on seeds that `learning` does not take; what is there already stays."""
    found = {"tuning": {"steps": num_steps, "seeds": list(seeds), "tried": {}}} | kept(out)
    for method, candidates in TRIED[host].items():
        rows = found["tuning"]["tried"].setdefault(method, [])
        done = [row["settings"] for row in rows]
        for settings in [settings for settings in candidates if settings not in done]:
            values = {"seed": seeds[0], "num_steps": num_steps, "settings": settings}
            returns = [round(learned(host, method, **values | {"seed": seed}), 2) for seed in seeds]
            rows.append({"settings": settings, "returns": returns})
            print(f"{host} {method} {settings}: {returns}, mean {np.mean(returns):.1f}", flush=True)
            out.write_text(json.dumps(found, indent=2) + "\n")


def best(found: dict[str, Any], method: str) -> dict[str, Any]:
    """The settings with the best mean of those that `tuning` compared."""
    rows = found["tuning"]["tried"][method]
    return max(rows, key=lambda row: np.mean(row["returns"]))["settings"]


def learning(host: str, *, agents: list[str] | None, seeds: range, num_steps: int, out: Path) -> None:
    """Train every agent with every seed and put the returns into a file, beside those of other seeds."""
    found = kept(out)
    found |= {"command": f"python benchmarks/hosts.py learning --host {host} --steps {num_steps}"}
    returns_before = found.get("returns", {}) if found.get("steps") == num_steps else {}
    found |= {"task": "Pendulum-v1", "steps": num_steps, "returns": returns_before}
    found |= {PACKAGES[host]: metadata.version(PACKAGES[host]), "torch": torch.__version__}
    out.parent.mkdir(parents=True, exist_ok=True)
    for agent in AGENTS[host]:
        if agents and agent not in agents:
            continue
        method = agent.partition(",")[0]
        settings = best(found, method) if agent.endswith(TUNED) else {}
        if agent.endswith(TUNED) and not settings:
            print(f"{host} {agent}: the best of the settings tried is {method} as the example has it", flush=True)
            continue
        returns = found["returns"].setdefault(agent, {})
        for seed in seeds:
            started = time.process_time()
            returns[str(seed)] = round(learned(host, agent, seed=seed, num_steps=num_steps, settings=settings), 2)
            words = f"{returns[str(seed)]:.1f} in {time.process_time() - started:.0f} s of processor time"
            print(f"{host} {agent} seed {seed}: {words}", flush=True)
            out.write_text(json.dumps(found, indent=2) + "\n")
        mean = np.mean(list(returns.values()))
        print(f"{host} {agent}: mean {mean:.1f} of {len(returns)} seeds, {num_steps} steps", flush=True)


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("deviation", "speed", "learning", "tuning"))
    parser.add_argument("--host", choices=PACKAGES, default="skrl")
    parser.add_argument("--agent", action="append", help="one of them alone, for `learning`")
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--iterations", type=int, default=30)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, help="0 by default, 10 for `tuning`")
    parser.add_argument("--out", type=Path, help="the picture of deviation, the returns of learning")
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    if args.what == "deviation":
        out = args.out or ROOT / "docs/images/rsl_rl_std.png"
        deviation(num_iterations=args.iterations, num_seeds=args.seeds, out=out)
    elif args.what == "speed":
        speed(num_iterations=args.iterations // 6, repeats=3)
    else:
        first = args.first_seed if args.first_seed is not None else 10 * (args.what == "tuning")
        seeds = range(first, first + args.seeds)
        out = args.out or ROOT / f"results/hosts/{args.host}.json"
        if args.what == "tuning":
            tuning(args.host, seeds=seeds, num_steps=args.steps, out=out)
            return
        learning(args.host, agents=args.agent, seeds=seeds, num_steps=args.steps, out=out)


if __name__ == "__main__":
    main(sys.argv[1:])
