"""The exact KL of anybody's update in Stable-Baselines3, computed again by PyTorch's own divergences."""

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from host_worlds import Cameras, Target
from stable_baselines3 import A2C, DQN, PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import configure
from torch.distributions import Categorical, Normal, kl_divergence

from trpl.integrations.sb3 import TRPL, ExactKL


class Choice(gymnasium.Env):
    """One step; the reward is the first number of the action. For any space of actions."""

    observation_space = spaces.Box(-1.0, 1.0, (3,), np.float32)

    def __init__(self, action_space):
        self.action_space = action_space

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.np_random.uniform(-1.0, 1.0, 3).astype(np.float32), {}

    def step(self, action):
        return self.reset()[0], float(np.ravel(action)[0]), True, False, {}


class Apart(BaseCallback):
    """Keeps the network's outputs before each update and computes KL(new ‖ old) by torch.distributions."""

    def __init__(self, divergence):
        super().__init__()
        self.divergence, self.found, self.old = divergence, [], None

    def _on_step(self):
        return True

    def _on_rollout_end(self):
        x = self.model.rollout_buffer.observations
        self.observations = torch.as_tensor(x.reshape(-1, x.shape[-1]))
        self.old = self.outputs()

    def _on_rollout_start(self):
        if self.old is not None:
            self.found.append(self.divergence(self.outputs(), self.old).numpy())

    _on_training_end = _on_rollout_start

    @torch.no_grad()
    def outputs(self):
        inside = self.model.policy.get_distribution(self.observations).distribution
        if isinstance(inside, list):
            return [Categorical(logits=p.logits.clone()) for p in inside]
        if isinstance(inside, Normal):
            return Normal(inside.loc.clone(), inside.scale.clone())
        return type(inside)(logits=inside.logits.clone())


def summed(p, q):
    return kl_divergence(p, q).sum(-1)


KINDS = {
    "gaussian": (spaces.Box(-1.0, 1.0, (2,), np.float32), summed),
    "categorical": (spaces.Discrete(4), kl_divergence),
    "several": (spaces.MultiDiscrete([3, 2]), lambda p, q: sum(map(kl_divergence, p, q))),
    "bernoulli": (spaces.MultiBinary(3), summed),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("algorithm", [PPO, A2C])
def test_against_divergences_computed_apart(kind, algorithm):
    space, divergence = KINDS[kind]
    model = algorithm("MlpPolicy", Choice(space), n_steps=64, learning_rate=0.01, seed=0, device="cpu")
    model.set_logger(configure(None, []))
    exact, apart = ExactKL(bound=1e-3), Apart(divergence)
    model.learn(192, callback=[apart, exact])
    assert len(apart.found) == 3
    assert exact.last.states == pytest.approx(apart.found[-1], rel=1e-3, abs=1e-6)
    assert exact.last.mean > 1e-5
    assert exact.last.share_above == pytest.approx(np.mean(apart.found[-1] > 1e-3), abs=0.02)
    logged = model.logger.name_to_value
    assert logged["exact/kl_max"] == pytest.approx(apart.found[-1].max(), rel=1e-3)
    assert logged["exact/kl_estimate"] > 0


class Rollout(BaseCallback):
    """Keeps the last rollout and the log-densities that the algorithm stored with it."""

    def _on_step(self):
        return True

    def _on_rollout_end(self):
        buffer = self.model.rollout_buffer
        names = [name for name in ("observations", "actions", "log_probs", "action_masks") if hasattr(buffer, name)]
        self.kept = {name: torch.as_tensor(getattr(buffer, name)).flatten(0, 1).clone() for name in names}


def estimate_by_host(model, kept, actions, **masks):
    with torch.no_grad():
        log_ratio = model.policy.evaluate_actions(kept["observations"], actions, **masks)[1] - kept["log_probs"]
    return float((log_ratio.exp() - 1.0 - log_ratio).mean())


def test_the_estimate_of_squashed_actions_is_the_hosts():
    space, options = spaces.Box(-1.0, 1.0, (2,), np.float32), {"squash_output": True}
    model = PPO("MlpPolicy", Choice(space), n_steps=64, use_sde=True, policy_kwargs=options, seed=0, device="cpu")
    exact, rollout = ExactKL(), Rollout()
    model.learn(64, callback=[exact, rollout])
    wanted = estimate_by_host(model, rollout.kept, rollout.kept["actions"])
    assert exact.last.estimate == pytest.approx(wanted, rel=1e-3)


class Forbidding(Choice):
    """The first class may not be chosen; of every action space as `sb3_contrib` lays out its masks."""

    def action_masks(self):
        sizes = {spaces.Discrete: [4], spaces.MultiDiscrete: [3, 2], spaces.MultiBinary: [2, 2, 2]}
        return np.arange(sum(sizes[type(self.action_space)])) > 0


@pytest.mark.parametrize("kind", ["categorical", "several", "bernoulli"])
def test_forbidden_actions_do_not_count(kind):
    contrib = pytest.importorskip("sb3_contrib", reason="sb3-contrib is not installed")
    settings = {"n_steps": 64, "learning_rate": 0.01, "seed": 0, "device": "cpu"}
    model = contrib.MaskablePPO("MlpPolicy", Forbidding(KINDS[kind][0]), **settings)
    exact, rollout = ExactKL(), Rollout()
    model.learn(64, callback=[exact, rollout])
    kept = rollout.kept
    actions = kept["actions"][:, 0] if kind == "categorical" else kept["actions"]
    wanted = estimate_by_host(model, kept, actions, action_masks=kept["action_masks"])
    assert exact.last.estimate == pytest.approx(wanted, rel=1e-3)
    assert exact.last.mean == pytest.approx(wanted, rel=0.5)  # of masked policies; the estimate is noisy


def test_beside_what_trpl_logs_itself():
    model = TRPL("MlpPolicy", Target(), n_steps=64, batch_size=32, learning_rate=0.01, seed=0, device="cpu")
    exact = ExactKL()
    model.learn(64, callback=exact)
    logged = model.logger.name_to_value
    assert logged["exact/kl"] == pytest.approx(logged["train/kl"], rel=1e-3)
    assert logged["exact/kl_max"] == pytest.approx(logged["train/kl_max"], rel=1e-3)
    assert "exact/kl_above" not in logged


def test_dictionaries_of_observations_in_parts(monkeypatch):
    """Parts of a rollout give together what the whole gives."""
    found = []
    for size in (4096, 10):
        monkeypatch.setattr("trpl.integrations.sb3.audit.STATES_AT_ONCE", size)
        model = PPO("MultiInputPolicy", Cameras(), n_steps=32, batch_size=16, seed=0, device="cpu")
        exact = ExactKL()
        model.learn(32, callback=exact)
        assert exact.last.states.shape == (32,)
        found.append(exact.last)
    assert found[0].states == pytest.approx(found[1].states, rel=1e-4)
    assert found[0].estimate == pytest.approx(found[1].estimate, rel=1e-4)


def test_refusals():
    with pytest.raises(TypeError, match="DQN has no rollouts"):
        DQN("MlpPolicy", Choice(spaces.Discrete(2)), device="cpu").learn(8, callback=ExactKL())


def test_a_memory_is_refused():
    contrib = pytest.importorskip("sb3_contrib", reason="sb3-contrib is not installed")
    model = contrib.RecurrentPPO("MlpLstmPolicy", Choice(spaces.Discrete(2)), n_steps=8, batch_size=8, device="cpu")
    with pytest.raises(TypeError, match="memory of a recurrent policy"):
        model.learn(8, callback=ExactKL())


def test_a_policy_in_jax_is_refused():
    sbx = pytest.importorskip("sbx", reason="sbx-rl is not installed")
    model = sbx.PPO("MlpPolicy", Choice(spaces.Discrete(2)), n_steps=8, batch_size=8)
    with pytest.raises(TypeError, match="needs a policy of PyTorch"):
        model.learn(8, callback=ExactKL())
