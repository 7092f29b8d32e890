"""TRPL in skrl: its own trainer trains it, the exact KL is tracked, and bad settings are refused in words."""

import inspect
from importlib import metadata

import gymnasium
import numpy as np
import pytest
import torch

pytest.importorskip("skrl", reason="skrl is not installed: pip install trpl[skrl]")

from host_worlds import Target, example
from skrl.agents.torch.ppo import PPO
from skrl.envs.wrappers.torch import wrap_env
from skrl.models.torch import GaussianMixin, Model
from skrl.resources.schedulers.torch import KLAdaptiveLR
from torch import nn
from torch.distributions import Normal, kl_divergence

from trpl.entropy_schedule import exponential

pendulum = example("skrl_pendulum")
VERSION = metadata.version("skrl")


class PerState(GaussianMixin, Model):
    """A Gaussian with a standard deviation per state."""

    def __init__(self, **spaces):
        Model.__init__(self, **spaces)
        GaussianMixin.__init__(self, role="policy")
        self.net = nn.Linear(self.num_observations, 2 * self.num_actions)

    def compute(self, inputs, role=""):
        mean, log_std = self.net(inputs["observations"]).chunk(2, -1)
        return mean, {"log_std": log_std}


def trained(updates=2, policy=None, watch=None, seed=0, resume=None, total=None, **settings):
    """Train on episodes of one step; `watch(agent, update)` replaces the update."""
    torch.manual_seed(seed)
    env = wrap_env(gymnasium.vector.SyncVectorEnv([Target] * 4), wrapper="gymnasium", verbose=False)
    options = {"learning_epochs": 3, "mini_batches": 2, "learning_rate": 1e-2, "observation_preprocessor": None}
    options |= {"observation_preprocessor_kwargs": {}, "discount_factor": 0.9}
    if policy is not None:
        pendulum_policy, pendulum.Policy = pendulum.Policy, policy
    try:
        agent = pendulum.make_agent("TRPL", env, rollouts=16, **(options | settings))
    finally:
        if policy is not None:
            pendulum.Policy = pendulum_policy
    agent.init()
    if resume is not None:
        agent.load(str(resume))
    if watch is not None:
        update = agent.update
        agent.update = lambda **time: watch(agent, lambda: update(**time))
    observations, _ = env.reset()
    agent.enable_training_mode(True)
    for step in range(16 * updates):
        time = {"timestep": step, "timesteps": total or 16 * updates}
        with torch.no_grad():
            actions, _ = agent.act(observations, None, **time)
            following, rewards, terminated, truncated, infos = env.step(actions)
            agent.record_transition(
                observations=observations,
                states=None,
                actions=actions,
                rewards=rewards,
                next_observations=following,
                next_states=None,
                terminated=terminated,
                truncated=truncated,
                infos=infos,
                **time,
            )
        agent.post_interaction(**time)
        observations = following
    return agent


def outputs(agent, observations):
    with torch.no_grad():
        agent.policy.act({"observations": observations}, role="policy")
    found = agent.policy.distribution(role="policy")
    return Normal(found.loc.double().clone(), found.scale.double().clone())


def recording(found):
    """Compute the KL of every update by PyTorch's own distributions, and keep what the agent tracks."""

    def watch(agent, update):
        observations = agent.memory.get_tensor_by_name("observations").flatten(0, 1).clone()
        old = outputs(agent, observations)
        agent.tracking_data.clear()
        update()
        kl = kl_divergence(outputs(agent, observations), old).sum(-1)
        found.append((kl, {name: values[-1] for name, values in agent.tracking_data.items()}))

    return watch


def test_the_seam():
    """What TRPL relies on in skrl; where this fails, skrl has moved."""
    assert VERSION.startswith("2."), f"skrl {VERSION} was never tried with trpl"
    assert list(inspect.signature(PPO.update).parameters) == ["self", "timestep", "timesteps"]
    source = inspect.getsource(PPO)
    for name in ("_observation_preprocessor", "_value_preprocessor", "_current_next_observations", "scaler"):
        assert name in source, f"PPO of skrl {VERSION} has no {name}"


@pytest.mark.parametrize("policy", [None, PerState], ids=["shared", "per state"])
def test_the_exact_kl_is_tracked(policy):
    found = []
    trained(3, policy, recording(found))
    assert len(found) == 3
    for kl, tracked in found:
        assert tracked["Policy / KL"] == pytest.approx(kl.mean().item(), rel=1e-3)
        assert tracked["Policy / KL (largest)"] == pytest.approx(kl.max().item(), rel=1e-3)
        share = (kl > 0.031).double().mean().item()
        assert tracked["Policy / KL (share of states above the bound)"] == pytest.approx(share, abs=0.02)


def test_a_shared_deviation_is_set_to_the_projected_one():
    """A large learning rate wants to go further than the bound: every update ends on it."""
    steps = []

    def watch(agent, update):
        old = agent.policy.log_std.detach().exp()
        update()
        new = agent.policy.log_std.detach().exp()
        steps.append(kl_divergence(Normal(0.0, new), Normal(0.0, old)).sum().item())

    trained(3, watch=watch, learning_rate=0.1, trust_region={"cov_bound": 1e-3})
    assert steps == pytest.approx([1e-3] * 3, rel=0.01)


def test_it_learns():
    agent = trained(40, learning_rate=5e-3, trust_region={"cov_bound": 0.01, "mean_bound": 0.1})
    observations = torch.rand(64, 2) * 2 - 1
    assert (outputs(agent, observations).loc - 0.6).abs().mean() < 0.15


def test_entropy_follows_its_schedule_across_a_checkpoint(tmp_path):
    region = {"entropy_schedule": "exponential", "target_entropy": -1.0, "temperature": 0.7, "entropy_equality": True}
    seen = []

    def watch(agent, update):
        update()
        seen.append(agent.policy.distribution(role="policy").entropy().sum(-1).mean().item())

    agent = trained(3, watch=watch, trust_region=region)
    agent.save(str(tmp_path / "agent.pt"))
    again = trained(1, seed=1, resume=tmp_path / "agent.pt", trust_region=region)
    assert again.initial_entropy.value == agent.initial_entropy.value
    start = 2 * 0.5 * np.log(2 * np.pi * np.e)
    progress = [(16 * (i + 1) - 1) / 48 for i in range(3)]
    wanted = [exponential(initial=start, target=-1.0, temperature=0.7, progress=p, dim=2) for p in progress]
    assert seen == pytest.approx(wanted, abs=1e-3)


def test_the_adaptive_schedule_follows_the_exact_kl():
    schedule = {"learning_rate_scheduler": KLAdaptiveLR, "learning_rate_scheduler_kwargs": {"kl_threshold": 1e-6}}
    agent = trained(2, **schedule)
    assert agent.optimizer.param_groups[0]["lr"] < 1e-2


@pytest.mark.parametrize(
    ("region", "words"),
    [({"projection": "clip"}, "projection must be one of"), ({"cov_bound": 0.0}, "cov_bound must be positive")],
)
def test_bad_settings(region, words):
    with pytest.raises(ValueError, match=words):
        trained(1, trust_region=region)


class Averaging(PerState):
    """Its log-density is the mean over the dimensions of an action."""

    def __init__(self, **spaces):
        super().__init__(**spaces)
        GaussianMixin.__init__(self, reduction="mean", role="policy")


def test_a_log_density_that_is_no_sum_is_refused():
    with pytest.raises(ValueError, match="reduction must be 'sum'"):
        trained(1, Averaging)


def test_the_joint_projection_needs_a_deviation_per_state():
    with pytest.raises(ValueError, match="its own covariance"):
        trained(1, trust_region={"projection": "kl-joint"})
    found = []
    trained(2, PerState, recording(found), trust_region={"projection": "kl-joint"})
    assert found[-1][0].mean() < 0.2


def test_the_stock_trainer(monkeypatch):
    """skrl's SequentialTrainer, preprocessors and the example."""
    agent = pendulum.train(steps=2 * 64 * 4, rollouts=64, mini_batches=2)
    assert np.isfinite(pendulum.evaluate(agent, episodes=2))
