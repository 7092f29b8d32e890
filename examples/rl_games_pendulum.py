"""rl_games with exact trust regions: its runner, networks and datasets, and another name under `algo`.

python examples/rl_games_pendulum.py --seed 0
python examples/rl_games_pendulum.py --agent PPO
"""

import argparse
import tempfile

import gymnasium
import numpy as np
import torch
from rl_games.common import env_configurations, vecenv
from rl_games.common.ivecenv import IVecEnv
from rl_games.torch_runner import Runner

from trpl.integrations.rl_games import register

ALGORITHMS = {"TRPL": "trpl", "PPO": "a2c_continuous"}
OWN = {"TRPL": {"mini_epochs": 10, "minibatch_size": 256, "lr_schedule": None}, "PPO": {}}
MLP = {"units": [64, 64], "activation": "tanh", "initializer": {"name": "default"}}
MEAN_INITIALIZER = {"name": "default"}


class Pendulums(IVecEnv):
    """Gymnasium's pendulums side by side in one process, as rl_games wants them."""

    def __init__(self, config_name: str, num_actors: int, seed: int = 0) -> None:
        same_step = {"autoreset_mode": gymnasium.vector.AutoresetMode.SAME_STEP}
        self.env = gymnasium.make_vec("Pendulum-v1", num_envs=num_actors, vector_kwargs=same_step)
        self.env.reset(seed=seed)

    def step(self, actions: np.ndarray) -> tuple:
        observations, rewards, terminated, truncated, _ = self.env.step(actions)
        return observations, rewards.astype(np.float32), terminated | truncated, {"time_outs": truncated}

    def reset(self) -> np.ndarray:
        return self.env.reset()[0]

    def get_env_info(self) -> dict:
        return {
            "observation_space": self.env.single_observation_space,
            "action_space": self.env.single_action_space,
            "agents": 1,
        }


vecenv.register("PENDULUMS", lambda name, num_actors, **settings: Pendulums(name, num_actors, **settings))
env_configurations.register("pendulum", {"vecenv_type": "PENDULUMS", "env_creator": None})


def configuration(agent: str, *, num_epochs: int, seed: int, folder: str, **settings: object) -> dict:
    """Return a configuration of rl_games, with the numbers of its own `ppo_pendulum_torch.yaml`.

    TRPL has more and smaller minibatches at a constant rate: eight steps of the optimiser hardly reach the bounds.
    """
    space = {"mu_activation": "None", "sigma_activation": "None", "fixed_sigma": True}
    space |= {"mu_init": MEAN_INITIALIZER, "sigma_init": {"name": "const_initializer", "val": 0.0}}
    network = {"name": "actor_critic", "separate": True, "space": {"continuous": space}, "mlp": MLP}
    config = {
        "name": "pendulum",
        "env_name": "pendulum",
        "env_config": {"seed": seed},
        "device": "cpu",
        "device_name": "cpu",
        "train_dir": folder,
        "reward_shaper": {"scale_value": 0.01},
        "num_actors": 16,
        "horizon_length": 128,
        "minibatch_size": 1024,
        "mini_epochs": 4,
        "max_epochs": num_epochs,
        "save_best_after": 10**9,
        "save_frequency": 0,
        "gamma": 0.99,
        "tau": 0.9,
        "learning_rate": 1e-3,
        "lr_schedule": "adaptive",
        "kl_threshold": 0.016,
        "normalize_input": False,
        "normalize_value": False,
        "normalize_advantage": True,
        "value_bootstrap": True,
        "critic_coef": 1.0,
        "entropy_coef": 0.0,
        "e_clip": 0.2,
        "clip_value": False,
        "truncate_grads": True,
        "grad_norm": 0.5,
        "bounds_loss_coef": 0.0,
        "ppo": True,
        "print_stats": False,
        "torch_compile": False,
        "trust_region": {"mean_bound": 0.1, "cov_bound": 0.01},  # wider than the defaults: few updates, one action
    }
    algorithm = {"algo": {"name": ALGORITHMS[agent]}, "model": {"name": "continuous_a2c_logstd"}}
    config |= OWN[agent] | settings
    return {"params": {"seed": seed, "torch_threads": 1, "network": network, "config": config} | algorithm}


def train(agent: str = "TRPL", *, steps: int = 100_000, seed: int = 0, folder: str | None = None, **settings: object):
    """Train with rl_games' own loop; `settings` go into its `config`."""
    with tempfile.TemporaryDirectory() as temporary:
        runner = Runner()
        register(runner)
        where = folder or temporary
        chosen = configuration(agent, num_epochs=steps // 2048, seed=seed + 1, folder=where, **settings)
        runner.load(chosen)
        made = runner.algo_factory.create(runner.algo_name, base_name="run", params=runner.params)
        made.train()
        return made


@torch.no_grad()
def evaluate(agent, *, episodes: int = 50, seed: int = 1000) -> float:
    """Compute the mean return without exploration noise."""
    env = gymnasium.make_vec("Pendulum-v1", num_envs=episodes)
    observations, _ = env.reset(seed=seed)
    total = 0.0
    agent.set_eval()
    for _ in range(200):
        seen = {"is_train": False, "prev_actions": None, "obs": torch.as_tensor(observations, dtype=torch.float32)}
        actions = agent.preprocess_actions(agent.model(seen)["mus"])
        observations, rewards, *_ = env.step(actions)
        total += float(rewards.mean())
    return total


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agent", choices=ALGORITHMS, default="TRPL")
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    trained = train(args.agent, steps=args.steps, seed=args.seed)
    print(f"{args.agent} seed {args.seed}: return {evaluate(trained):.1f} without noise over 50 episodes")
