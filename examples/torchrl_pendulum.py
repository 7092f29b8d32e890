"""TRPL in TorchRL's usual loop: collector, GAE, loss module, replay buffer. Learns Pendulum-v1 in about 200,000 steps.

python examples/torchrl_pendulum.py [--steps 204800] [--seed 0]
"""

import argparse

import torch
from tensordict.nn import TensorDictModule
from torch import nn
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, SamplerWithoutReplacement, TensorDictReplayBuffer
from torchrl.envs import (
    ExplorationType,
    GymEnv,
    ObservationNorm,
    RewardSum,
    StepCounter,
    TransformedEnv,
    set_exploration_type,
)
from torchrl.modules import IndependentNormal, ProbabilisticActor, ValueOperator
from torchrl.objectives.value import GAE

from trpl.integrations.torchrl import SharedScale, TRPLLoss
from trpl.torch import KLProjection

ROLLOUT_SIZE, MINIBATCH_SIZE, POLICY_EPOCHS, VALUE_EPOCHS = 1024, 64, 20, 10


def make_env(seed: int) -> TransformedEnv:
    env = TransformedEnv(GymEnv("Pendulum-v1"))
    env.append_transform(ObservationNorm(0.0, torch.tensor([1.0, 1.0, 0.25]), in_keys=["observation"]))
    env.append_transform(RewardSum())
    env.append_transform(StepCounter())
    env.set_seed(seed)
    return env


def network(output_size: int) -> nn.Sequential:
    layers = [nn.Linear(3, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, output_size)]
    for layer, gain in zip(layers[::2], (2**0.5, 2**0.5, 0.01), strict=True):
        nn.init.orthogonal_(layer.weight, gain)
        nn.init.zeros_(layer.bias)
    return nn.Sequential(*layers)


def train(num_steps: int, *, seed: int) -> float:
    """Train and return the mean noise-free return of ten episodes."""
    torch.manual_seed(seed)
    env = make_env(seed)
    head = SharedScale(1)
    module = TensorDictModule(nn.Sequential(network(1), head), in_keys=["observation"], out_keys=["loc", "scale"])
    actor = ProbabilisticActor(
        module,
        in_keys=["loc", "scale"],
        spec=env.action_spec,
        distribution_class=IndependentNormal,
        return_log_prob=True,
    )
    critic = ValueOperator(network(1), in_keys=["observation"])
    loss = TRPLLoss(actor, critic, layer=KLProjection(0.03, 1e-3, check=False), shared_covariance=True)
    advantages = GAE(gamma=0.9, lmbda=0.95, value_network=critic)
    policy_optimiser = torch.optim.Adam(actor.parameters(), lr=3e-4, eps=1e-5)
    value_optimiser = torch.optim.Adam(critic.parameters(), lr=1e-3, eps=1e-5)
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(ROLLOUT_SIZE), sampler=SamplerWithoutReplacement(), batch_size=MINIBATCH_SIZE
    )
    collector = Collector(env, actor, frames_per_batch=ROLLOUT_SIZE, total_frames=num_steps)
    for iteration, data in enumerate(collector):
        with torch.no_grad():
            # smaller values are easier to fit; the ranking of policies is the same
            data["next", "reward"] = data["next", "reward"] / 8
            advantages(data)
        buffer.extend(data.reshape(-1))
        for _ in range(VALUE_EPOCHS):
            for batch in buffer:
                step(value_optimiser, loss.loss_critic(batch))
        for _ in range(POLICY_EPOCHS):
            for batch in buffer:
                found = loss(batch)
                step(policy_optimiser, found["loss_objective"] + found["loss_penalty"])
        head.set_(loss.projected(data.reshape(-1)).std)
        ended = data["next", "episode_reward"][data["next", "done"]]
        if iteration % 10 == 0 and len(ended):
            kl = loss(data.reshape(-1))["kl"].item()
            print(f"{(iteration + 1) * ROLLOUT_SIZE:7} steps  return {ended.mean():8.1f}  kl {kl:.4f}", flush=True)
    collector.shutdown()
    return evaluate(make_env(seed + 1), actor)


def step(optimiser: torch.optim.Optimizer, loss: torch.Tensor) -> None:
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()


@torch.no_grad()
def evaluate(env: TransformedEnv, actor: ProbabilisticActor, *, num_episodes: int = 10) -> float:
    """Compute the mean return without exploration noise."""
    with set_exploration_type(ExplorationType.DETERMINISTIC):
        returns = [env.rollout(200, actor)["next", "episode_reward"][-1] for _ in range(num_episodes)]
    return float(torch.stack(returns).mean())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=204_800)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.set_num_threads(1)
    print(f"noise-free return {train(args.steps, seed=args.seed):.1f}")
