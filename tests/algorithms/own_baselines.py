"""PAPI and TRPO written again: expectations state by state, the Hessian by two derivatives."""

import math

import torch
from restatement import Normal, clipped_loss, features, kl, policy_of, set_covariance

LEFT_TO_ROUNDING, MET = 1e-4, 1e-5  # PAPI projects onto ε(1 − the first) and counts as met what is this near


def mean_kl(p, q):
    mean, cov = kl(p, q)
    return (mean + cov).mean()


def papi(learner, samples, orders, rate):
    """PPO, the newest snapshot within the bound, then rounds of the projection of head and covariance."""
    config, q = learner.config, samples.old
    limit = config.bound * (1 - LEFT_TO_ROUNDING)
    snapshots = [copy(learner)]
    for order in orders[0]:
        learner.policy_adam.minimise(
            clipped_loss(learner, samples), learner.policy, rate=rate, orders=[order], size=config.minibatch_size
        )
        snapshots.append(copy(learner))
    within = [mean_kl(policy_of(policy, samples.x), q) <= limit for policy, _ in snapshots]
    within[0] = True  # the old policy itself
    newest = max(i for i, fits in enumerate(within) if fits)
    learner.policy, learner.policy_adam = snapshots[newest]
    if len(orders[0]) - newest >= 4:
        learner.rate_factor *= 0.8

    entropy = float(q.entropy())
    fallen = learner.initial_entropy - entropy > q.dim * math.log(2)
    least = entropy - config.bound if fallen else -math.inf
    with torch.no_grad():
        project(learner.policy, samples, limit=limit, least=least)


def copy(learner):
    policy = {name: w.detach().clone().requires_grad_() for name, w in learner.policy.items()}
    return policy, learner.policy_adam.copy()


def project(policy, samples, *, limit, least):
    q, h = samples.old, features(policy, samples.x)
    intermediate = policy_of(policy, samples.x)
    mean, chol = intermediate.mean, intermediate.chol
    head = {name: policy[name].clone() for name in ("mean/weight", "mean/bias")}
    near = kl(intermediate, q)[0].mean()  # m′
    for _ in range(20):
        here = Normal(mean, chol)
        if mean_kl(here, q) <= limit * (1 + MET) and here.entropy() >= least - MET:
            return
        chol = chol * math.exp(max(least - float(here.entropy()), 0.0) / q.dim)
        m, cov = kl(Normal(mean, chol), q)
        m = m.mean()
        nearer = torch.minimum(m, near)
        if m + cov > limit:
            share = max(limit - nearer, 0.0) / (m + cov - nearer)
            chol = torch.linalg.cholesky((1 - share) * q.cov + share * chol @ chol.mT)
        cov = kl(Normal(mean, chol), q)[1]
        if m + cov > limit:
            # ½E‖L⁻¹(μ′ + η(μ − μ′) − μ_q)‖² + cov = ε, the larger root
            way, start = q.whitened(mean - intermediate.mean), q.whitened(intermediate.mean - q.mean)
            a, b = 0.5 * (way**2).sum(-1).mean(), (way * start).sum(-1).mean()
            if a > 0:
                c = min(float(near + cov - limit), 0.0)
                share = (-b + torch.sqrt(b**2 - 4 * a * c)) / (2 * a)
                for name, value in head.items():
                    policy[name][:] = value + share * (policy[name] - value)
                mean = h @ policy["mean/weight"] + policy["mean/bias"]
        set_covariance(policy, chol)


def trpo(learner, samples, orders, rate):
    """One natural-gradient step: conjugate gradients on the Hessian of the mean KL, then halving."""
    config, weights = learner.config, learner.policy
    names, everything = list(weights), torch.arange(len(samples.x))

    def loss(w):
        ratio = samples.ratio(policy_of(w, samples.x), everything)
        return -(ratio * samples.normalised(everything)).mean()

    def flat(parts):
        return torch.cat([part.reshape(-1) for part in parts])

    def moved(step):
        sizes = [weights[name].numel() for name in names]
        parts = torch.split(step, sizes)
        return {
            name: weights[name] + part.reshape(weights[name].shape) for name, part in zip(names, parts, strict=True)
        }

    parameters = [weights[name] for name in names]
    before = loss(weights)
    gradient = flat(torch.autograd.grad(before, parameters))
    slope = flat(
        torch.autograd.grad(mean_kl(policy_of(weights, samples.x), samples.old), parameters, create_graph=True)
    )

    def product(v):
        return flat(torch.autograd.grad(slope @ v, parameters, retain_graph=True)) + config.cg_damping * v

    x, residual, direction = torch.zeros_like(gradient), gradient.clone(), gradient.clone()
    for _ in range(config.cg_steps):
        if residual @ residual <= 1e-10 * (gradient @ gradient):
            break
        image = product(direction)
        length = (residual @ residual) / (direction @ image)
        x, rest = x + length * direction, residual - length * image
        direction, residual = rest + (rest @ rest) / (residual @ residual) * direction, rest
    full = -torch.sqrt(2 * config.bound / (x @ product(x))) * x
    with torch.no_grad():
        for i in range(config.line_search_steps):
            candidate = moved(0.5**i * full)
            if mean_kl(policy_of(candidate, samples.x), samples.old) <= config.bound and loss(candidate) < before:
                for name in names:
                    weights[name][:] = candidate[name]
                return
