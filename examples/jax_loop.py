"""Policy gradient with a trust-region layer in one JAX file: copy it and make it yours.

An update, all its epochs included, is one compiled call; acting is NumPy, which is faster for one observation.

python examples/jax_loop.py [--env Pendulum-v1] [--steps 200000] [--seed 0] [--projection kl]
"""

import argparse
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from trpl import DiagGaussian, log_prob
from trpl.jax import FrobeniusProjection, KLProjection, WassersteinProjection

PROJECTIONS = {"kl": KLProjection, "w2": WassersteinProjection, "frobenius": FrobeniusProjection}
MEAN_BOUND, COV_BOUND, REGRESSION_WEIGHT = 0.03, 1e-3, 8.0  # paper, table of MuJoCo hyperparameters
ROLLOUT_SIZE, MINIBATCH_SIZE, POLICY_EPOCHS, VALUE_EPOCHS = 1024, 64, 20, 10
LEARNING_RATE, LEARNING_RATE_VF, DISCOUNT, GAE_LAMBDA, REWARD_SCALE = 3e-4, 1e-3, 0.9, 0.95, 0.1
POLICY_OPTIMISER, VALUE_OPTIMISER = optax.adam(LEARNING_RATE, eps=1e-5), optax.adam(LEARNING_RATE_VF, eps=1e-5)


class State(NamedTuple):
    """The parameters of policy and value function, and the states of their optimisers."""

    policy: dict[str, Any]  # layers of the mean and one log_std for all states
    value: dict[str, Any]
    policy_optimiser: Any
    value_optimiser: Any


class Rollout(NamedTuple):
    """Transitions in the order of time, with normalised observations."""

    observations: Array
    next_observations: Array
    actions: Array
    rewards: Array
    terminated: Array
    truncated: Array


class Collector:
    """One environment with running statistics of its observations; episodes run on from rollout to rollout."""

    def __init__(self, env_id: str, seed: int) -> None:
        self.env, self.rng = gymnasium.make(env_id), np.random.default_rng(seed)
        size = self.env.observation_space.shape[0]
        self.count, self.mean, self.sum_squares = 0, np.zeros(size), np.zeros(size)
        self.observation = self.normalise(self.env.reset(seed=seed)[0])
        self.running, self.returns = 0.0, []

    def normalise(self, x: np.ndarray) -> np.ndarray:
        """Add an observation to the statistics, and return it normalised."""
        self.count += 1
        shift = x - self.mean
        self.mean += shift / self.count
        self.sum_squares += shift * (x - self.mean)
        return ((x - self.mean) / np.sqrt(self.sum_squares / self.count + 1e-8)).astype(np.float32)

    def collect(self, policy: dict[str, Any], num_steps: int) -> Rollout:
        """Act for some steps."""
        policy, steps = jax.device_get(policy), []
        std = np.exp(policy["log_std"])
        for _ in range(num_steps):
            mean = apply(policy, self.observation, xp=np)
            action = mean + std * self.rng.standard_normal(mean.shape, np.float32)  # raw: neither squashed nor clipped
            raw, reward, terminated, truncated, _ = self.env.step(action)
            following = self.normalise(raw)  # of the true next observation, also at the end of an episode
            steps.append((self.observation, following, action, reward * REWARD_SCALE, terminated, truncated))
            self.observation, self.running = following, self.running + reward
            if terminated or truncated:
                self.returns.append(self.running)
                self.observation, self.running = self.normalise(self.env.reset()[0]), 0.0
        return Rollout(*(np.asarray(column, np.float32) for column in zip(*steps, strict=True)))


def init_network(key: Array, sizes: tuple[int, ...], *, gain: float) -> dict[str, Any]:
    """Initialise orthogonal layers; `gain` is that of the last."""
    layers = []
    for i, shape in enumerate(pairwise(sizes)):
        scale = gain if i == len(sizes) - 2 else 2**0.5
        weight = jax.nn.initializers.orthogonal(scale)(jax.random.fold_in(key, i), shape)
        layers.append((weight, jnp.zeros(shape[1])))
    return {"layers": layers}


def apply(params: dict[str, Any], x: Any, *, xp: Any = jnp) -> Any:
    """Compute a network's outputs with JAX or NumPy."""
    for weight, bias in params["layers"][:-1]:
        x = xp.tanh(x @ weight + bias)
    weight, bias = params["layers"][-1]
    return x @ weight + bias


def gaussian(policy: dict[str, Any], observations: Array) -> DiagGaussian:
    """Predict the policy; a standard deviation without a batch axis is shared by all states."""
    return DiagGaussian(apply(policy, observations), jnp.exp(policy["log_std"]))


def advantages_and_returns(rollout: Rollout, value: dict[str, Any]) -> tuple[Array, Array]:
    """Compute GAE: a truncated episode is worth the value of its last observation, a terminated one nothing."""
    values, following = (apply(value, x)[:, 0] for x in (rollout.observations, rollout.next_observations))
    deltas = rollout.rewards + DISCOUNT * following * (1 - rollout.terminated) - values
    goes_on = (1 - rollout.terminated) * (1 - rollout.truncated)

    def back(running, now):
        delta, alive = now
        running = delta + DISCOUNT * GAE_LAMBDA * alive * running
        return running, running

    advantages = jax.lax.scan(back, jnp.zeros(()), (deltas, goes_on), reverse=True)[1]
    return advantages, advantages + values


def fit(loss, params, optimiser_state, data, *, optimiser, key: Array, num_epochs: int):
    """Minimise `loss(params, minibatch)` in minibatches, with every sample once per epoch."""
    total = len(data[0])
    orders = jax.vmap(lambda k: jax.random.permutation(k, total))(jax.random.split(key, num_epochs))

    def step(carry, rows):
        params, optimiser_state = carry
        gradient = jax.grad(loss)(params, jax.tree.map(lambda x: x[rows], data))
        updates, optimiser_state = optimiser.update(gradient, optimiser_state)
        return (optax.apply_updates(params, updates), optimiser_state), None

    return jax.lax.scan(step, (params, optimiser_state), orders.reshape(-1, MINIBATCH_SIZE))[0]


@partial(jax.jit, static_argnames="projection")
def update(state: State, rollout: Rollout, key: Array, *, projection: str) -> State:
    """Fit the value function, run policy epochs through the layer, and set the standard deviation."""
    layer = PROJECTIONS[projection](MEAN_BOUND, COV_BOUND)
    advantages, returns = advantages_and_returns(rollout, state.value)
    old = gaussian(state.policy, rollout.observations)
    old_log_prob = log_prob(old, rollout.actions)
    value_key, policy_key = jax.random.split(key)

    def value_loss(value, minibatch):
        observations, returns = minibatch
        return jnp.square(apply(value, observations)[:, 0] - returns).mean()

    def policy_loss(policy, minibatch):
        observations, actions, advantages, old_log_prob, old_mean = minibatch
        predicted = gaussian(policy, observations)
        projected = layer(predicted, DiagGaussian(old_mean, old.std))
        ratio = jnp.exp(log_prob(projected, actions) - old_log_prob)
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        return REGRESSION_WEIGHT * layer.penalty(predicted, projected).mean() - (ratio * advantages).mean()

    value, value_optimiser = fit(
        value_loss, state.value, state.value_optimiser, (rollout.observations, returns),
        optimiser=VALUE_OPTIMISER, key=value_key, num_epochs=VALUE_EPOCHS,
    )  # fmt: skip
    policy, policy_optimiser = fit(
        policy_loss, state.policy, state.policy_optimiser,
        (rollout.observations, rollout.actions, advantages, old_log_prob, old.mean),
        optimiser=POLICY_OPTIMISER, key=policy_key, num_epochs=POLICY_EPOCHS,
    )  # fmt: skip
    projected = layer(gaussian(policy, rollout.observations), old)
    policy |= {"log_std": jnp.log(projected.std)}  # a shared standard deviation is set to the projected one
    return State(policy, value, policy_optimiser, value_optimiser)


def train(env_id: str, *, num_steps: int, seed: int = 0, projection: str = "kl", verbose: bool = True) -> list[float]:
    """Train, and return the returns of all episodes."""
    collector = Collector(env_id, seed)
    obs_size, action_size = (space.shape[0] for space in (collector.env.observation_space, collector.env.action_space))
    policy_key, value_key, key = jax.random.split(jax.random.key(seed), 3)
    policy = init_network(policy_key, (obs_size, 64, 64, action_size), gain=0.01) | {"log_std": jnp.zeros(action_size)}
    value = init_network(value_key, (obs_size, 64, 64, 1), gain=1.0)
    state = State(policy, value, POLICY_OPTIMISER.init(policy), VALUE_OPTIMISER.init(value))
    for iteration in range(1, num_steps // ROLLOUT_SIZE + 1):
        rollout = collector.collect(state.policy, ROLLOUT_SIZE)
        state = update(state, rollout, jax.random.fold_in(key, iteration), projection=projection)
        if verbose and iteration % 10 == 0:
            recent, std = np.mean(collector.returns[-20:]), float(jnp.exp(state.policy["log_std"]).mean())
            print(f"{iteration * ROLLOUT_SIZE:8} steps  return {recent:8.1f}  std {std:.2f}", flush=True)
    return collector.returns


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", default="Pendulum-v1")
    parser.add_argument("--steps", type=int, default=200_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--projection", choices=PROJECTIONS, default="kl")
    args = parser.parse_args()
    returns = train(args.env, num_steps=args.steps, seed=args.seed, projection=args.projection)
    print(f"mean return of the last 50 episodes: {np.mean(returns[-50:]):.1f}")
