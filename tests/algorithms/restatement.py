"""One epoch of the algorithms, said again: PyTorch in float64, plain loops, the layers alone are shared."""

import numpy as np
import torch

import trpl.torch
from trpl import DiagGaussian, FullGaussian

SHIFT = float(np.log(np.expm1(1 - 1e-5)))


def to_torch(weights):
    return {name: torch.tensor(np.asarray(w, np.float64), requires_grad=True) for name, w in weights.items()}


def features(w, x):
    for i in range(9):
        if f"layer{i}/weight" in w:
            x = torch.tanh(x @ w[f"layer{i}/weight"] + w[f"layer{i}/bias"])
    return x


def value_of(w, x):
    return (features(w, x) @ w["value/weight"] + w["value/bias"]).squeeze(-1)


def positive(raw):
    return torch.nn.functional.softplus(raw + SHIFT) + 1e-5


def policy_of(w, x):
    h = features(w, x)
    mean = h @ w["mean/weight"] + w["mean/bias"]
    name = "std" if any(key.startswith("std/") for key in w) else "chol"
    raw = w[f"{name}/raw"] if f"{name}/raw" in w else h @ w[f"{name}/weight"] + w[f"{name}/bias"]
    if name == "std":
        return DiagGaussian(mean, positive(raw))
    d = mean.shape[-1]
    rows, columns = np.tril_indices(d, -1)
    chol = torch.diag_embed(positive(raw[..., :d]))
    lower = torch.zeros_like(chol)
    lower[..., rows, columns] = raw[..., d:]
    return FullGaussian(mean, chol + lower)


def log_density(gaussian, actions):
    chol = torch.diag_embed(gaussian.std) if isinstance(gaussian, DiagGaussian) else gaussian.chol
    return torch.distributions.MultivariateNormal(gaussian.mean, scale_tril=chol).log_prob(actions)


def mean_entropy(gaussian):
    chol = torch.diag_embed(gaussian.std) if isinstance(gaussian, DiagGaussian) else gaussian.chol
    return torch.distributions.MultivariateNormal(torch.zeros_like(chol[..., 0]), scale_tril=chol).entropy().mean()


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


def minimise(loss, weights, *, learning_rate, orders, size, clip):
    optimiser = torch.optim.Adam(weights.values(), lr=learning_rate, eps=1e-5)
    for order in orders:
        for start in range(0, len(order), size):
            optimiser.zero_grad()
            loss(torch.tensor(order[start : start + size], dtype=torch.long)).backward()
            if clip is not None:
                torch.nn.utils.clip_grad_norm_(weights.values(), clip)
            optimiser.step()


def pick(gaussian, rows):
    scale = gaussian.scale if gaussian.shares_covariance else gaussian.scale[rows]
    return type(gaussian)(gaussian.mean[rows], scale)


def detach(gaussian):
    return type(gaussian)(*(part.detach() for part in gaussian))


def epoch(config, policy, value, batch, orders, *, layer=None, entropy=None):
    """Weights of policy and value function after one epoch; `orders` are those the trainer used."""
    policy, value = to_torch(policy), to_torch(value)
    x, after = (torch.tensor(np.asarray(b, np.float64)) for b in (batch.observations, batch.next_observations))
    values, next_values = (value_of(value, b).detach().numpy() for b in (x, after))
    advantages = advantages_of(
        np.asarray(batch.rewards, np.float64),
        values,
        next_values,
        batch.terminated,
        batch.truncated,
        discount=config.discount,
        gae_lambda=config.gae_lambda,
    )
    returns, old_values = torch.tensor((advantages + values).ravel()), torch.tensor(values.ravel())
    advantages = torch.tensor(advantages.ravel())
    x = x.reshape(-1, x.shape[-1])
    actions = torch.tensor(np.asarray(batch.actions, np.float64)).reshape(len(x), -1)
    old = detach(policy_of(policy, x))
    old_density = log_density(old, actions)

    def value_loss(rows):
        v = value_of(value, x[rows])
        error = (v - returns[rows]) ** 2
        if getattr(config, "value_clip", None) is not None:
            near = old_values[rows] + (v - old_values[rows]).clamp(-config.value_clip, config.value_clip)
            error = torch.maximum(error, (near - returns[rows]) ** 2)
        return error.mean()

    common = {"size": config.minibatch_size, "clip": config.gradient_clip}
    minimise(value_loss, value, learning_rate=config.learning_rate_vf, orders=orders[0], **common)
    project = (lambda p, q: layer(p, q, **(entropy or {}))) if layer else (lambda p, q: p)

    def policy_loss(rows):
        predicted = policy_of(policy, x[rows])
        projected = project(predicted, pick(old, rows))
        a = advantages[rows]
        a = (a - a.mean()) / (a.std(correction=0) + 1e-8)
        ratio = torch.exp(log_density(projected, actions[rows]) - old_density[rows])
        if layer is None:
            clipped = ratio.clamp(1 - config.ratio_clip, 1 + config.ratio_clip)
            return -torch.minimum(ratio * a, clipped * a).mean() - config.entropy_weight * mean_entropy(projected)
        penalty = layer.penalty(predicted, projected).mean() if config.regression == "penalty" else 0.0
        bonus = config.entropy_weight * mean_entropy(projected)
        return -(ratio * a).mean() + config.regression_weight * penalty - bonus

    minimise(policy_loss, policy, learning_rate=config.learning_rate, orders=orders[1], **common)
    if layer is not None:
        target = detach(project(policy_of(policy, x), old))
        if getattr(config, "regression", None) == "full":
            minimise(
                lambda rows: layer.penalty(policy_of(policy, x[rows]), pick(target, rows)).mean(),
                policy,
                learning_rate=config.learning_rate,
                orders=orders[2],
                **common,
            )
        if not config.contextual:
            set_covariance(policy, target)
    return ({name: w.detach().numpy() for name, w in part.items()} for part in (policy, value))


def set_covariance(policy, target):
    def raw(y):
        return torch.log(torch.expm1(y - 1e-5)) - SHIFT

    with torch.no_grad():
        if isinstance(target, DiagGaussian):
            policy["std/raw"][:] = raw(target.std)
        else:
            d = target.dim
            rows, columns = np.tril_indices(d, -1)
            policy["chol/raw"][:d] = raw(torch.diagonal(target.chol))
            policy["chol/raw"][d:] = target.chol[rows, columns]


LAYERS = {
    "kl": lambda c: trpl.torch.KLProjection(c.mean_bound, c.cov_bound, entropy_first=bool(c.entropy_first)),
    "w2": lambda c: trpl.torch.WassersteinProjection(
        c.mean_bound, c.cov_bound, form=c.wasserstein_form, entropy_first=bool(c.entropy_first)
    ),
    "frobenius": lambda c: trpl.torch.FrobeniusProjection(
        c.mean_bound, c.cov_bound, whitened=c.whitened, entropy_first=bool(c.entropy_first)
    ),
}
