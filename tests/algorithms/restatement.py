"""The updates said again from the paper: PyTorch, float64, plain loops, nothing of the package.

A policy's Gaussians are a mean and a Cholesky factor, diagonal ones too; the factor has no batch axis where one
covariance is shared. Settings are read by the names that the package gives them.
"""

import math
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch

SHIFT = math.log(math.expm1(1 - 1e-5))
DECAY, DECAY_OF_SQUARES, EPSILON = 0.9, 0.999, 1e-5


class Normal(NamedTuple):
    mean: torch.Tensor
    chol: torch.Tensor

    @property
    def dim(self):
        return self.mean.shape[-1]

    @property
    def is_shared(self):
        return self.chol.ndim == 2

    @property
    def cov(self):
        return self.chol @ self.chol.mT

    def detach(self):
        return Normal(self.mean.detach(), self.chol.detach())

    def rows(self, chosen):
        return Normal(self.mean[chosen], self.chol if self.is_shared else self.chol[chosen])

    def whitened(self, shift):
        """L⁻¹ v, state by state."""
        return torch.linalg.solve_triangular(self.chol, shift[..., None], upper=False)[..., 0]

    def entropy(self):
        log_det = torch.log(torch.diagonal(self.chol, dim1=-2, dim2=-1)).sum(-1)
        return log_det + 0.5 * self.dim * math.log(2 * math.pi * math.e)

    def log_density(self, actions):
        away = (self.whitened(actions - self.mean) ** 2).sum(-1)
        return -0.5 * away - self.entropy() + 0.5 * self.dim


def kl(p, q):
    """KL(p‖q) by parts: mean, covariance."""
    mean = 0.5 * (q.whitened(p.mean - q.mean) ** 2).sum(-1)
    ratio = torch.linalg.solve_triangular(q.chol, p.chol, upper=False)
    return mean, 0.5 * ((ratio**2).sum((-2, -1)) - p.dim) + q.entropy() - p.entropy()


def features(w, x):
    for i in range(9):
        if f"layer{i}/weight" in w:
            x = torch.tanh(x @ w[f"layer{i}/weight"] + w[f"layer{i}/bias"])
    return x


def value_of(w, x):
    return (features(w, x) @ w["value/weight"] + w["value/bias"]).squeeze(-1)


def policy_of(w, x):
    h = features(w, x)
    mean = h @ w["mean/weight"] + w["mean/bias"]
    name = "std" if any(key.startswith("std/") for key in w) else "chol"
    raw = w[f"{name}/raw"] if f"{name}/raw" in w else h @ w[f"{name}/weight"] + w[f"{name}/bias"]
    d = mean.shape[-1]
    chol = torch.diag_embed(torch.nn.functional.softplus(raw[..., :d] + SHIFT) + 1e-5)
    if name == "chol":
        rows, columns = np.tril_indices(d, -1)
        lower = torch.zeros_like(chol)
        lower[..., rows, columns] = raw[..., d:]
        chol = chol + lower
    return Normal(mean, chol)


def set_covariance(w, chol):
    """Make the shared covariance that of the factor `chol`."""
    diagonal = torch.log(torch.expm1(torch.diagonal(chol) - 1e-5)) - SHIFT
    with torch.no_grad():
        if "std/raw" in w:
            w["std/raw"][:] = diagonal
        else:
            w["chol/raw"][:] = torch.cat([diagonal, chol[np.tril_indices(len(chol), -1)]])


@dataclass
class Adam:
    """Adam with ε = 1e-5, after clipping the whole gradient's norm where asked to."""

    clip: float | None
    steps: int = 0
    first: dict = field(default_factory=dict)
    second: dict = field(default_factory=dict)

    def move(self, weights, loss, rate):
        found = torch.autograd.grad(loss, list(weights.values()), materialize_grads=True)  # 0 where it plays no part
        gradients = dict(zip(weights, found, strict=True))
        norm = math.sqrt(sum(float((g**2).sum()) for g in gradients.values()))
        share = 1.0 if self.clip is None or norm < self.clip else self.clip / norm
        self.steps += 1
        for name, gradient in gradients.items():
            g = share * gradient
            self.first[name] = DECAY * self.first.get(name, 0.0) + (1 - DECAY) * g
            self.second[name] = DECAY_OF_SQUARES * self.second.get(name, 0.0) + (1 - DECAY_OF_SQUARES) * g**2
            mean = self.first[name] / (1 - DECAY**self.steps)
            square = self.second[name] / (1 - DECAY_OF_SQUARES**self.steps)
            with torch.no_grad():
                weights[name] -= rate * mean / (torch.sqrt(square) + EPSILON)

    def copy(self):
        return Adam(self.clip, self.steps, dict(self.first), dict(self.second))

    def minimise(self, loss, weights, *, rate, orders, size):
        """Go over the samples in these orders, in minibatches; the last of a pass may be smaller."""
        for order in orders:
            for start in range(0, len(order), size):
                self.move(weights, loss(torch.tensor(order[start : start + size], dtype=torch.long)), rate)


class Samples(NamedTuple):
    x: torch.Tensor
    actions: torch.Tensor
    advantages: torch.Tensor
    old: Normal
    old_density: torch.Tensor

    def ratio(self, policy, rows):
        return torch.exp(policy.log_density(self.actions[rows]) - self.old_density[rows])

    def normalised(self, rows):
        a = self.advantages[rows]
        return (a - a.mean()) / (a.std(correction=0) + 1e-8)


def advantages_of(rewards, values, next_values, terminated, truncated, *, discount, gae_lambda):
    """Backwards, one environment at a time."""
    result = np.zeros_like(rewards)
    for n in range(rewards.shape[1]):
        after = 0.0
        for t in reversed(range(len(rewards))):
            residual = rewards[t, n] + discount * next_values[t, n] * (not terminated[t, n]) - values[t, n]
            after = residual + discount * gae_lambda * (not (terminated[t, n] or truncated[t, n])) * after
            result[t, n] = after
    return result


def tensors(weights):
    return {name: torch.tensor(np.asarray(w, np.float64), requires_grad=True) for name, w in weights.items()}


class Restated:
    """Both networks and their optimisers over several updates; `improve(self, samples, orders, rate)` is the method."""

    def __init__(self, config, policy, value, improve, *, passes, epoch=0, initial_entropy=None):
        self.config, self.improve, self.passes = config, improve, passes
        self.policy, self.value = tensors(policy), tensors(value)
        self.policy_adam, self.value_adam = Adam(config.gradient_clip), Adam(config.gradient_clip)
        self.epoch, self.initial_entropy, self.rate_factor = epoch, initial_entropy, 1.0

    def weights(self):
        return tuple({name: w.detach().numpy() for name, w in part.items()} for part in (self.policy, self.value))

    def update(self, batch, rng):
        config, size = self.config, self.config.rollout_size
        orders = [rng.permuted(np.tile(np.arange(size, dtype=np.int32), (n, 1)), axis=1) for n in self.passes]
        x, after = (torch.tensor(np.asarray(b, np.float64)) for b in (batch.observations, batch.next_observations))
        values, next_values = (value_of(self.value, b).detach().numpy() for b in (x, after))
        advantages = advantages_of(
            np.asarray(batch.rewards, np.float64), values, next_values, batch.terminated, batch.truncated,
            discount=config.discount, gae_lambda=config.gae_lambda,
        )  # fmt: skip
        returns, old_values = torch.tensor((advantages + values).ravel()), torch.tensor(values.ravel())
        x = x.reshape(-1, x.shape[-1])
        actions = torch.tensor(np.asarray(batch.actions, np.float64)).reshape(len(x), -1)
        old = policy_of(self.policy, x).detach()
        samples = Samples(x, actions, torch.tensor(advantages.ravel()), old, old.log_density(actions))
        if self.initial_entropy is None:
            self.initial_entropy = float(old.entropy().mean())
        left = self.rate_factor * (1 - self.epoch * size / config.total_steps if config.learning_rate_decay else 1.0)

        def value_loss(rows):
            v, clip = value_of(self.value, x[rows]), config.get("value_clip")
            error = (v - returns[rows]) ** 2
            if clip is not None:
                near = old_values[rows] + (v - old_values[rows]).clamp(-clip, clip)
                error = torch.maximum(error, (near - returns[rows]) ** 2)
            return error.mean()

        rate, batch_size = left * config.learning_rate_vf, config.minibatch_size
        self.value_adam.minimise(value_loss, self.value, rate=rate, orders=orders[0], size=batch_size)
        self.improve(self, samples, orders[1:], left * (config.get("learning_rate") or 0.0))
        self.epoch += 1


def through(layer):
    """Policy epochs through a layer of its own, then full regression, then the shared covariance (Algorithm 2)."""

    def improve(learner, samples, orders, rate):
        config, weights = learner.config, learner.policy
        bound = {} if config.entropy_schedule == "none" else {layer.entropy_word: entropy_target(learner)}

        def loss(rows):
            predicted = policy_of(weights, samples.x[rows])
            projected = layer(predicted, samples.old.rows(rows), **bound)
            surrogate = (samples.ratio(projected, rows) * samples.normalised(rows)).mean()
            penalty = layer.penalty(predicted, projected).mean()
            return -surrogate + config.regression_weight * penalty - config.entropy_weight * projected.entropy().mean()

        size = config.minibatch_size
        learner.policy_adam.minimise(loss, weights, rate=rate, orders=orders[0], size=size)
        target = layer(policy_of(weights, samples.x), samples.old, **bound).detach()
        if config.regression == "full":

            def regression(rows):
                return layer.penalty(policy_of(weights, samples.x[rows]), target.rows(rows)).mean()

            Adam(config.gradient_clip).minimise(regression, weights, rate=rate, orders=orders[1], size=size)
        if not config.contextual:
            set_covariance(weights, target.chol)

    return improve


def entropy_target(learner):
    """β = κd + (H₀ − κd) τ^(10 i/N)."""
    config = learner.config
    final = config.target_entropy * learner.policy["mean/bias"].numel()
    num_epochs = config.total_steps / config.rollout_size
    return final + (learner.initial_entropy - final) * config.temperature ** (10 * learner.epoch / num_epochs)


def clipped_loss(learner, samples):
    """PPO's loss of a minibatch."""
    config = learner.config

    def loss(rows):
        policy, a = policy_of(learner.policy, samples.x[rows]), samples.normalised(rows)
        ratio = samples.ratio(policy, rows)
        clipped = ratio.clamp(1 - config.ratio_clip, 1 + config.ratio_clip)
        return -torch.minimum(ratio * a, clipped * a).mean() - config.entropy_weight * policy.entropy().mean()

    return loss


def clipped(learner, samples, orders, rate):
    """Policy epochs of PPO."""
    loss, size = clipped_loss(learner, samples), learner.config.minibatch_size
    learner.policy_adam.minimise(loss, learner.policy, rate=rate, orders=orders[0], size=size)
