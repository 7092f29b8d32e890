"""Policy gradient with a trust-region layer in one PyTorch file: copy it and make it yours.

python examples/pytorch_loop.py [--env Pendulum-v1] [--steps 200000] [--seed 0] [--projection kl]
"""

import argparse
from typing import NamedTuple

import gymnasium
import numpy as np
import torch
from torch import Tensor, nn

from trpl import DiagGaussian, log_prob
from trpl.torch import FrobeniusProjection, KLProjection, WassersteinProjection

PROJECTIONS = {"kl": KLProjection, "w2": WassersteinProjection, "frobenius": FrobeniusProjection}
MEAN_BOUND, COV_BOUND, REGRESSION_WEIGHT = 0.03, 1e-3, 8.0  # paper, table of MuJoCo hyperparameters
ROLLOUT_SIZE, MINIBATCH_SIZE, POLICY_EPOCHS, VALUE_EPOCHS = 1024, 64, 20, 10
LEARNING_RATE, LEARNING_RATE_VF, DISCOUNT, GAE_LAMBDA, REWARD_SCALE = 3e-4, 1e-3, 0.9, 0.95, 0.1


class Policy(nn.Module):
    """A mean from a network, and one standard deviation for all states."""

    def __init__(self, obs_size: int, action_size: int) -> None:
        super().__init__()
        self.mean = network(obs_size, action_size, gain=0.01)
        self.log_std = nn.Parameter(torch.zeros(action_size))

    def forward(self, observations: Tensor) -> DiagGaussian:
        return DiagGaussian(self.mean(observations), self.log_std.exp())


class Rollout(NamedTuple):
    """Transitions in the order of time, with normalised observations."""

    observations: Tensor
    next_observations: Tensor
    actions: Tensor
    rewards: Tensor
    terminated: Tensor
    truncated: Tensor


class Normaliser:
    """Running mean and variance of all observations so far."""

    def __init__(self, size: int) -> None:
        self.count, self.mean, self.sum_squares = 0, np.zeros(size), np.zeros(size)

    def __call__(self, x: np.ndarray, *, learn: bool = False) -> Tensor:
        if learn:
            self.count += 1
            shift = x - self.mean
            self.mean += shift / self.count
            self.sum_squares += shift * (x - self.mean)
        std = np.sqrt(self.sum_squares / max(self.count, 1) + 1e-8)
        return torch.as_tensor((x - self.mean) / std, dtype=torch.float32)


class Collector:
    """One environment; episodes run on from rollout to rollout."""

    def __init__(self, env_id: str, seed: int) -> None:
        self.env = gymnasium.make(env_id)
        self.normalise = Normaliser(self.env.observation_space.shape[0])
        self.observation = self.normalise(self.env.reset(seed=seed)[0], learn=True)
        self.running, self.returns = 0.0, []

    @torch.no_grad()
    def collect(self, policy: Policy, num_steps: int) -> Rollout:
        """Act for some steps."""
        steps = []
        for _ in range(num_steps):
            mean, std = policy(self.observation)
            action = mean + std * torch.randn_like(mean)  # raw: neither squashed nor clipped
            raw, reward, terminated, truncated, _ = self.env.step(action.numpy())
            following = self.normalise(raw, learn=True)  # of the true next observation, also at the end of an episode
            steps.append((self.observation, following, action, reward * REWARD_SCALE, terminated, truncated))
            self.observation, self.running = following, self.running + reward
            if terminated or truncated:
                self.returns.append(self.running)
                self.observation, self.running = self.normalise(self.env.reset()[0], learn=True), 0.0
        observations, following, actions, rewards, terminated, truncated = zip(*steps, strict=True)
        numbers = (torch.tensor(x, dtype=torch.float32) for x in (rewards, terminated, truncated))
        return Rollout(torch.stack(observations), torch.stack(following), torch.stack(actions), *numbers)


def network(input_size: int, output_size: int, *, gain: float) -> nn.Sequential:
    """Make a network with orthogonal layers; `gain` is that of the last."""
    layers = [nn.Linear(input_size, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, output_size)]
    for layer, scale in zip(layers[::2], (2**0.5, 2**0.5, gain), strict=True):
        nn.init.orthogonal_(layer.weight, scale)
        nn.init.zeros_(layer.bias)
    return nn.Sequential(*layers)


@torch.no_grad()
def advantages_and_returns(rollout: Rollout, value: nn.Module) -> tuple[Tensor, Tensor]:
    """Compute GAE: a truncated episode is worth the value of its last observation, a terminated one nothing."""
    values, following = value(rollout.observations)[:, 0], value(rollout.next_observations)[:, 0]
    deltas = rollout.rewards + DISCOUNT * following * (1 - rollout.terminated) - values
    goes_on = (1 - rollout.terminated) * (1 - rollout.truncated)
    advantages, running = torch.zeros_like(deltas), torch.zeros(())
    for t in reversed(range(len(deltas))):
        running = deltas[t] + DISCOUNT * GAE_LAMBDA * goes_on[t] * running
        advantages[t] = running
    return advantages, advantages + values


def minibatches(total: int, num_epochs: int):
    """Yield the rows of each minibatch, with every sample once per epoch."""
    for _ in range(num_epochs):
        yield from torch.randperm(total).split(MINIBATCH_SIZE)


def step(optimiser: torch.optim.Optimizer, loss: Tensor) -> None:
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()


def update(rollout: Rollout, *, policy, value, layer, policy_optimiser, value_optimiser) -> None:
    """Fit the value function, run policy epochs through the layer, and set the standard deviation."""
    advantages, returns = advantages_and_returns(rollout, value)
    with torch.no_grad():
        old = policy(rollout.observations)
        old = DiagGaussian(old.mean, old.std.clone())
        old_log_prob = log_prob(old, rollout.actions)

    for rows in minibatches(len(returns), VALUE_EPOCHS):
        step(value_optimiser, nn.functional.mse_loss(value(rollout.observations[rows])[:, 0], returns[rows]))

    for rows in minibatches(len(returns), POLICY_EPOCHS):
        predicted = policy(rollout.observations[rows])
        projected = layer(predicted, DiagGaussian(old.mean[rows], old.std))
        ratio = torch.exp(log_prob(projected, rollout.actions[rows]) - old_log_prob[rows])
        advantage = (advantages[rows] - advantages[rows].mean()) / (advantages[rows].std() + 1e-8)
        penalty = layer.penalty(predicted, projected).mean()
        step(policy_optimiser, REGRESSION_WEIGHT * penalty - (ratio * advantage).mean())

    with torch.no_grad():  # a shared standard deviation is set to the projected one
        policy.log_std.copy_(layer(policy(rollout.observations), old).std.log())


def train(env_id: str, *, num_steps: int, seed: int = 0, projection: str = "kl", verbose: bool = True) -> list[float]:
    """Train, and return the returns of all episodes."""
    torch.manual_seed(seed)
    collector = Collector(env_id, seed)
    obs_size, action_size = (space.shape[0] for space in (collector.env.observation_space, collector.env.action_space))
    policy, value = Policy(obs_size, action_size), network(obs_size, 1, gain=1.0)
    parts = {
        "policy": policy,
        "value": value,
        "layer": PROJECTIONS[projection](MEAN_BOUND, COV_BOUND, check=False),
        "policy_optimiser": torch.optim.Adam(policy.parameters(), lr=LEARNING_RATE, eps=1e-5),
        "value_optimiser": torch.optim.Adam(value.parameters(), lr=LEARNING_RATE_VF, eps=1e-5),
    }
    for iteration in range(1, num_steps // ROLLOUT_SIZE + 1):
        update(collector.collect(policy, ROLLOUT_SIZE), **parts)
        if verbose and iteration % 10 == 0:
            recent, std = np.mean(collector.returns[-20:]), policy.log_std.exp().mean().item()
            print(f"{iteration * ROLLOUT_SIZE:8} steps  return {recent:8.1f}  std {std:.2f}", flush=True)
    return collector.returns


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", default="Pendulum-v1")
    parser.add_argument("--steps", type=int, default=200_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--projection", choices=PROJECTIONS, default="kl")
    args = parser.parse_args()
    torch.set_num_threads(1)
    returns = train(args.env, num_steps=args.steps, seed=args.seed, projection=args.projection)
    print(f"mean return of the last 50 episodes: {np.mean(returns[-50:]):.1f}")
