"""skrl with exact trust regions: its models, memory and trainer, and another agent class.

python examples/skrl_pendulum.py --seed 0
python examples/skrl_pendulum.py --agent PPO
"""

import argparse

import gymnasium
import torch
from skrl.agents.torch.ppo import PPO, PPO_CFG
from skrl.envs.wrappers.torch import wrap_env
from skrl.memories.torch import RandomMemory
from skrl.models.torch import DeterministicMixin, GaussianMixin, Model
from skrl.resources.preprocessors.torch import RunningStandardScaler
from skrl.trainers.torch import SequentialTrainer
from skrl.utils import set_seed
from torch import nn

from trpl.integrations.skrl import TRPL, TRPL_CFG

AGENTS = {"TRPL": (TRPL, TRPL_CFG), "PPO": (PPO, PPO_CFG)}
ACTIVATION = nn.Tanh
OWN = {  # TRPL: long rollouts in small minibatches, so that an update has enough steps to reach its bounds
    "PPO": {"num_envs": 16, "rollouts": 64},
    "TRPL": {
        "num_envs": 4,
        "rollouts": 1024,
        "mini_batches": 64,
        "value_clip": 0.0,
        "trust_region": {"mean_bound": 0.03, "cov_bound": 3e-3, "regression_weight": 1.0},
    },
}


def network(num_inputs: int, num_outputs: int) -> nn.Sequential:
    hidden = (nn.Linear(num_inputs, 64), ACTIVATION(), nn.Linear(64, 64), ACTIVATION())
    return nn.Sequential(*hidden, nn.Linear(64, num_outputs))


class Policy(GaussianMixin, Model):
    """A Gaussian whose standard deviation is a parameter."""

    def __init__(self, **spaces: object) -> None:
        Model.__init__(self, **spaces)
        GaussianMixin.__init__(self, role="policy")
        self.net = network(self.num_observations, self.num_actions)
        self.log_std = nn.Parameter(torch.zeros(self.num_actions))

    def compute(self, inputs: dict, role: str = "") -> tuple[torch.Tensor, dict]:
        return 2.0 * self.net(inputs["observations"]), {"log_std": self.log_std}  # torques go to ±2


class Value(DeterministicMixin, Model):
    """The value of a state."""

    def __init__(self, **spaces: object) -> None:
        Model.__init__(self, **spaces)
        DeterministicMixin.__init__(self, role="value")
        self.net = network(self.num_observations, 1)

    def compute(self, inputs: dict, role: str = "") -> tuple[torch.Tensor, dict]:
        return self.net(inputs["observations"]), {}


def make_agent(agent: str, env, *, rollouts: int, **settings: object):
    """Make an agent of skrl; TRPL takes PPO's settings and those of its trust region."""
    kind, configuration = AGENTS[agent]
    spaces = {"observation_space": env.observation_space, "state_space": env.state_space}
    spaces |= {"action_space": env.action_space, "device": env.device}
    scaler = {"observation_preprocessor": RunningStandardScaler, "value_preprocessor": RunningStandardScaler}
    scaler |= {"observation_preprocessor_kwargs": {"size": env.observation_space, "device": env.device}}
    scaler |= {"value_preprocessor_kwargs": {"size": 1, "device": env.device}}
    chosen = {"rollouts": rollouts, "learning_epochs": 10, "mini_batches": 8, "learning_rate": 1e-3}
    chosen |= {"discount_factor": 0.9, "gae_lambda": 0.95, "time_limit_bootstrap": True, "value_loss_scale": 0.5}
    chosen |= {"experiment": {"write_interval": 0, "checkpoint_interval": 0}}
    return kind(
        models={"policy": Policy(**spaces), "value": Value(**spaces)},
        memory=RandomMemory(memory_size=rollouts, num_envs=env.num_envs, device=env.device),
        cfg=configuration(**(chosen | scaler | settings)),
        **spaces,
    )


def train(agent: str = "TRPL", *, steps: int = 100_000, seed: int = 0, **settings):
    """Train with skrl's own trainer; `settings` are the agent's, and `num_envs`."""
    set_seed(seed)
    settings = OWN[agent] | settings
    num_envs = settings.pop("num_envs")
    env = wrap_env(gymnasium.make_vec("Pendulum-v1", num_envs=num_envs), verbose=False)
    made = make_agent(agent, env, **settings)
    trainer = {
        "timesteps": steps // num_envs,
        "headless": True,
        "disable_progressbar": True,
        "close_environment_at_exit": False,
    }
    SequentialTrainer(env=env, agents=made, cfg=trainer).train()
    return made


@torch.no_grad()
def evaluate(agent, *, episodes: int = 50, seed: int = 1000) -> float:
    """Compute the mean return without exploration noise."""
    env = gymnasium.make_vec("Pendulum-v1", num_envs=episodes)
    observations, _ = env.reset(seed=seed)
    total = 0.0
    for _ in range(200):
        seen = agent._observation_preprocessor(torch.as_tensor(observations, dtype=torch.float32))
        _, outputs = agent.policy.act({"observations": seen}, role="policy")
        observations, rewards, *_ = env.step(outputs["mean_actions"].numpy())
        total += float(rewards.mean())
    return total


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agent", choices=AGENTS, default="TRPL")
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    trained = train(args.agent, steps=args.steps, seed=args.seed)
    print(f"{args.agent} seed {args.seed}: return {evaluate(trained):.1f} without noise over 50 episodes")
