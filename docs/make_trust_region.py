"""The picture on the start page: why a policy update needs a trust region, and what a layer does about it.

    python docs/make_trust_region.py

Writes docs/images/trust_region.png. Left: by how much a policy N(μ, 1) is better than the old one, N(0, 1), in a
task with one action: worked out exactly, and estimated by importance weights from 30 actions of the old policy, as
policy-gradient methods do; 25 such data sets. Right: one prediction and its projection by the KL layer.
"""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import torch

from trpl import DiagGaussian
from trpl.torch import KLProjection

IMAGES = Path(__file__).resolve().parent / "images"
MEAN_BOUND, COV_BOUND = 0.08, 0.02
OLD, PREDICTED, PROJECTED, GREY = "#5b6770", "#c2410c", "#1d4ed8", "#94a3b8"


def density(action, mean, std=1.0):
    return np.exp(-0.5 * ((action - mean) / std) ** 2) / (std * np.sqrt(2 * np.pi))


def reward(action):
    """Best at 0.9, and worse and worse on both sides."""
    return -0.5 * (action - 0.9) ** 2


def improvement(means):
    """Mean reward of N(mean, 1) minus that of N(0, 1): −½((mean − 0.9)² + 1) + ½(0.9² + 1)."""
    return -0.5 * (means - 0.9) ** 2 + 0.5 * 0.9**2


def estimate(means, rng, num_actions=30):
    """Importance-weighted mean of the advantages that were seen, for each mean of the new policy."""
    actions = rng.normal(size=num_actions)
    advantages = reward(actions) - reward(actions).mean()
    weights = density(actions, means[:, None]) / density(actions, 0.0)
    return (weights * advantages).mean(axis=1)


def draw_why(axes):
    means = np.linspace(-0.8, 3.0, 153)
    edge = np.sqrt(2 * MEAN_BOUND)
    rng = np.random.default_rng(1)
    axes.axvspan(-edge, edge, color=PROJECTED, alpha=0.13, lw=0)
    for k in range(25):
        label = "25 estimates, each from 30 actions of the old policy" if k == 0 else None
        axes.plot(means, estimate(means, rng), color=GREY, lw=0.7, alpha=0.9, label=label)
    axes.plot(means, improvement(means), color="black", lw=2.2, label="truth")
    axes.text(0.0, -1.83, "trust\nregion", ha="center", color=PROJECTED, fontsize=9)
    axes.set(xlim=(-0.8, 3.0), ylim=(-2.0, 2.0), xlabel="mean of the new policy (the old policy's is 0)")
    axes.set_ylabel("improvement over the old policy")
    axes.legend(frameon=False, fontsize=8, loc="upper left")
    axes.set_title("The old policy's data says little about distant policies", fontsize=10, loc="left")


def draw_what(axes):
    old = DiagGaussian(torch.zeros(1, dtype=torch.float64), torch.ones(1, dtype=torch.float64))
    predicted = DiagGaussian(torch.full_like(old.mean, 1.9), torch.full_like(old.std, 0.55))
    projected = KLProjection(mean_bound=MEAN_BOUND, cov_bound=COV_BOUND)(predicted, old)
    actions = np.linspace(-3.2, 4.0, 400)
    for policy, colour, words in (
        (old, OLD, "old: collected the data"),
        (predicted, PREDICTED, "predicted: what the network wants"),
        (projected, PROJECTED, "projected: as near to it as the bounds allow"),
    ):
        heights = density(actions, float(policy.mean), float(policy.std))
        axes.plot(actions, heights, color=colour, lw=2, label=words)
        axes.fill_between(actions, heights, color=colour, alpha=0.10, lw=0)
    axes.set(xlim=(-3.2, 4.0), ylim=(0, 1.05), xlabel="action", yticks=[])
    axes.legend(frameon=False, fontsize=8, loc="upper left")
    axes.set_title("What the layer does in one state", fontsize=10, loc="left")


def main():
    plt.rcParams.update({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False})
    figure, (left, right) = plt.subplots(1, 2, figsize=(9.6, 3.5), layout="constrained")
    draw_why(left)
    draw_what(right)
    IMAGES.mkdir(exist_ok=True)
    figure.savefig(IMAGES / "trust_region.png", dpi=160, metadata={"Software": None})


if __name__ == "__main__":
    main()
