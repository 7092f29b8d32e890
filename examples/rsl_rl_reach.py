"""rsl_rl with exact trust regions: a task of its own, a stock runner, and one line of its configuration.

python examples/rsl_rl_reach.py --iterations 150
python examples/rsl_rl_reach.py --algorithm PPO
"""

import argparse

import torch
from rsl_rl.env import VecEnv
from rsl_rl.runners import OnPolicyRunner
from tensordict import TensorDict


class Reach(VecEnv):
    """Points in the plane that are pushed to a goal they see; reward −‖position − goal‖², 20 steps."""

    def __init__(self, num_envs: int = 64, seed: int = 0) -> None:
        self.num_envs, self.num_actions, self.max_episode_length, self.device, self.cfg = num_envs, 2, 20, "cpu", {}
        self.generator = torch.Generator().manual_seed(seed)
        self.episode_length_buf = torch.zeros(num_envs, dtype=torch.long)
        self.position, self.goal = self.draw(), self.draw()

    def draw(self) -> torch.Tensor:
        return 2.0 * torch.rand(self.num_envs, 2, generator=self.generator) - 1.0

    def get_observations(self) -> TensorDict:
        return TensorDict({"policy": torch.cat([self.position, self.goal], -1)}, batch_size=[self.num_envs])

    def step(self, actions: torch.Tensor) -> tuple[TensorDict, torch.Tensor, torch.Tensor, dict]:
        self.position = self.position + 0.2 * actions.clamp(-1.0, 1.0)
        rewards = -(self.position - self.goal).square().sum(-1)
        self.episode_length_buf = self.episode_length_buf + 1
        ended = self.episode_length_buf >= self.max_episode_length
        self.position = torch.where(ended[:, None], self.draw(), self.position)
        self.goal = torch.where(ended[:, None], self.draw(), self.goal)
        self.episode_length_buf[ended] = 0
        return self.get_observations(), rewards, ended.long(), {"time_outs": ended.float()}


def configuration(class_name: str = "trpl.integrations.rsl_rl:TRPL", **algorithm: object) -> dict:
    """Return a configuration of rsl_rl; `class_name` is the only line that differs from PPO's."""
    network = {"class_name": "MLPModel", "hidden_dims": [32, 32], "activation": "elu"}
    gaussian = {"class_name": "GaussianDistribution", "init_std": 1.0, "std_type": "scalar"}
    return {
        "num_steps_per_env": 20,
        "save_interval": 1000,
        "obs_groups": {"actor": ["policy"], "critic": ["policy"]},
        "actor": network | {"distribution_cfg": gaussian},
        "critic": dict(network),
        "algorithm": {"class_name": class_name, "schedule": "fixed", "learning_rate": 1e-3, "entropy_coef": 0.0}
        | algorithm,
    }


def train(iterations: int, *, seed: int = 0, log_dir: str | None = None, **algorithm: object) -> OnPolicyRunner:
    """Train with rsl_rl's own runner."""
    torch.manual_seed(seed)
    runner = OnPolicyRunner(Reach(seed=seed), configuration(**algorithm), log_dir=log_dir, device="cpu")
    runner.learn(iterations)
    return runner


def cost(runner: OnPolicyRunner, *, num_steps: int = 200) -> float:
    """Compute the mean squared distance to the goal, acting without noise."""
    env, policy, total = Reach(seed=1), runner.get_inference_policy(), 0.0
    with torch.inference_mode():
        for _ in range(num_steps):
            total -= env.step(policy(env.get_observations()))[1].mean().item()
    return total / num_steps


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--iterations", type=int, default=150)
    parser.add_argument("--algorithm", default="trpl.integrations.rsl_rl:TRPL")
    args = parser.parse_args()
    print(f"mean squared distance to the goal: {cost(train(args.iterations, class_name=args.algorithm)):.4f}")
