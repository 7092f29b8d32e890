"""TRPL in Stable-Baselines3: whatever works with its PPO works with it, and the update is the paper's."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from gymnasium import spaces
from host_worlds import Cameras, Target
from stable_baselines3.common.callbacks import BaseCallback, CheckpointCallback, EvalCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.envs import IdentityEnv, IdentityEnvMultiBinary, IdentityEnvMultiDiscrete
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize
from torch import nn

from trpl import Bernoulli, Categorical, DiagGaussian, Product, entropy, kl, kl_parts
from trpl.entropy_schedule import exponential, linear
from trpl.errors import ConvergenceError
from trpl.integrations.sb3 import TRPL
from trpl.integrations.sb3.reading import log_prob, predicted

SMALL = {"n_steps": 32, "batch_size": 16, "n_epochs": 2, "n_epochs_vf": 1, "device": "cpu", "seed": 0}
EAGER = SMALL | {"learning_rate": 0.03, "n_epochs": 8}  # large steps, so that every bound binds
KINDS = [("diagonal", False), ("diagonal", True), ("full", False), ("full", True)]


def target_env(num_envs=1, **kwargs):
    return DummyVecEnv([lambda: Monitor(Target(**kwargs)) for _ in range(num_envs)])


def weights(model):
    return {name: value.clone() for name, value in model.policy.state_dict().items()}


def assert_same(a, b):
    assert a.keys() == b.keys()
    for name in a:
        assert torch.equal(a[name], b[name]), name


class AtEachRollout(BaseCallback):
    def __init__(self, look):
        super().__init__()
        self.look = look

    def _on_step(self):
        return True

    def _on_rollout_end(self):
        self.look(self.model)


@pytest.mark.parametrize("projection", ["kl", "w2", "frobenius", "kl-joint"])
@pytest.mark.parametrize(("covariance", "contextual"), KINDS)
def test_every_projection_with_every_covariance(projection, covariance, contextual):
    kwargs = {"covariance": covariance, "contextual": contextual}
    model = TRPL("MlpPolicy", target_env(), projection=projection, policy_kwargs=kwargs, **EAGER)
    before = weights(model)
    model.learn(64)
    found = model.logger.name_to_value
    assert not torch.equal(before["action_net.weight"], model.policy.action_net.weight)
    assert all(np.isfinite(value) for name, value in found.items() if name.startswith("train/"))
    bound = 0.031 if projection == "kl-joint" else 0.03
    assert found["train/after_mean_max"] <= bound * 1.001
    assert found["train/before_mean_max"] > found["train/after_mean_max"]  # the layer had something to do


def test_a_shared_deviation_is_set_to_the_projected_one():
    seen = []
    model = TRPL("MlpPolicy", target_env(), **EAGER)
    observation = torch.zeros(1, 2)
    model.learn(96, callback=AtEachRollout(lambda m: seen.append(m.policy.gaussian(observation).detached())))
    seen.append(model.policy.gaussian(observation).detached())
    steps = [kl_parts(new, old).cov.item() for old, new in pairwise(seen)]
    assert steps == pytest.approx([1e-3] * 3, rel=0.01)  # every update wants to go further than the bound


@pytest.mark.parametrize(("policy", "name"), [("MlpPolicy", "spread"), (ActorCriticPolicy, "log_std")])
def test_a_shared_deviation_that_is_not_trained_stays_as_it_is(policy, name):
    model = TRPL(policy, target_env(), entropy_schedule="linear", target_entropy=3.0, **EAGER)
    getattr(model.policy, name).requires_grad_(False).fill_(-0.7)
    model.learn(96)
    assert (getattr(model.policy, name) == -0.7).all()


def test_entropy_is_held_at_the_schedule():
    settings = {"entropy_schedule": "exponential", "target_entropy": -1.0, "temperature": 0.7, "entropy_equality": True}
    model = TRPL("MlpPolicy", target_env(), **settings, **SMALL).learn(128)
    start = entropy(DiagGaussian(torch.zeros(2), torch.ones(2))).item()
    assert model.initial_entropy == pytest.approx(start, abs=1e-5)
    wanted = exponential(initial=start, target=-1.0, temperature=0.7, progress=0.75, dim=2)  # update 3 of 0 … 3
    assert model.logger.name_to_value["train/entropy_target"] == pytest.approx(wanted, abs=1e-5)
    assert model.logger.name_to_value["train/entropy"] == pytest.approx(wanted, abs=1e-4)


def test_entropy_may_have_a_linear_floor():
    settings = {"entropy_schedule": "linear", "target_entropy": 0.0, "cov_bound": 10.0}
    model = TRPL("MlpPolicy", target_env(), **settings, **EAGER).learn(128)
    floor = linear(initial=model.initial_entropy, target=0.0, progress=0.75, dim=2)
    assert model.logger.name_to_value["train/entropy"] >= floor - 1e-4


def test_an_entropy_out_of_reach_is_approached_within_the_bound():
    """An equality that falls faster than the bound allows has no solution: the nearest entropy is taken."""
    settings = {"entropy_schedule": "exponential", "target_entropy": -1.0, "entropy_equality": True}
    falling = []
    model = TRPL("MlpPolicy", target_env(), projection="kl-joint", **settings, **EAGER)

    def look(m):
        found = m.logger.name_to_value
        if "train/entropy" in found:
            falling.append((found["train/after_mean"] + found["train/after_cov"], found["train/entropy"]))

    model.learn(320, callback=AtEachRollout(look))
    bounds, entropies = zip(*falling, strict=True)
    assert max(bounds) <= 0.031 * 1.001
    assert all(later < earlier for earlier, later in pairwise(entropies))
    assert entropies[-1] > model.logger.name_to_value["train/entropy_target"]  # which asks for more than can be had


def test_a_policy_that_is_not_finite_is_an_error():
    model = TRPL("MlpPolicy", target_env(), **SMALL)

    def break_it(m):
        with torch.no_grad():
            m.policy.action_net.weight.fill_(torch.nan)

    with pytest.raises(ConvergenceError, match="not finite after 32 steps"):
        model.learn(32, callback=AtEachRollout(break_it))


@pytest.mark.parametrize("num_updates", [0, 1, 3])
def test_saved_and_loaded_it_goes_on_identically(tmp_path, num_updates):
    kwargs = {"covariance": "full", "contextual": True}
    settings = SMALL | {"entropy_schedule": "exponential", "mean_bound": 0.02, "learning_rate_vf": 1e-3}
    settings |= {"projection": "w2", "projection_kwargs": {"form": "exact"}}
    model = TRPL("MlpPolicy", target_env(), policy_kwargs=kwargs, **settings)
    if num_updates:
        model.learn(32 * num_updates)
    model.save(tmp_path / "model")
    loaded = TRPL.load(tmp_path / "model", device="cpu")
    assert loaded.initial_entropy == model.initial_entropy
    assert (loaded.mean_bound, loaded.layer.region.form) == (0.02, "exact")
    results = []
    for each in (model, loaded):
        each.set_env(target_env())
        each.set_random_seed(7)
        each.learn(64, reset_num_timesteps=num_updates == 0)
        logged = {k: v for k, v in each.logger.name_to_value.items() if k.startswith("train/")}
        results.append((weights(each), each.policy.value_optimizer.state_dict()["state"][0]["exp_avg"], logged))
    assert_same(results[0][0], results[1][0])
    assert torch.equal(results[0][1], results[1][1])
    assert results[0][2] == results[1][2]


def test_saved_within_a_rollout(tmp_path):
    model = TRPL("MlpPolicy", target_env(), **SMALL)
    model.learn(64, callback=CheckpointCallback(save_freq=41, save_path=str(tmp_path)))
    (file,) = tmp_path.iterdir()
    loaded = TRPL.load(file, env=target_env(), device="cpu")
    assert loaded.num_timesteps == 41
    assert loaded.initial_entropy is not None
    loaded.learn(64, reset_num_timesteps=False)
    assert loaded.num_timesteps == 41 + 64


def test_loading_may_change_a_setting(tmp_path):
    TRPL("MlpPolicy", target_env(), **SMALL).save(tmp_path / "model")
    loaded = TRPL.load(tmp_path / "model", mean_bound=0.5, device="cpu")
    assert loaded.layer.mean_bound == 0.5


def test_settings_may_change_between_updates():
    model = TRPL("MlpPolicy", target_env(), **EAGER, mean_bound=10.0)
    model.mean_bound = 1e-3
    found = model.learn(32).logger.name_to_value
    assert found["train/before_mean_max"] > 2e-3
    assert found["train/after_mean_max"] == pytest.approx(1e-3, rel=1e-3)


def test_evaluation_callback_and_normalised_vectorised_environments(tmp_path):
    env = VecNormalize(make_vec_env("Pendulum-v1", n_envs=3, seed=0))
    test_env = VecNormalize(make_vec_env("Pendulum-v1", seed=1), training=False, norm_reward=False)
    evaluation = EvalCallback(test_env, eval_freq=32, n_eval_episodes=1, best_model_save_path=str(tmp_path), verbose=0)
    model = TRPL("MlpPolicy", env, **SMALL).learn(192, callback=[evaluation, AtEachRollout(lambda m: None)])
    assert model.num_timesteps == 192
    assert len(model.rollout_buffer.actions) == 32 * 3
    assert np.isfinite(evaluation.last_mean_reward)
    assert (tmp_path / "best_model.zip").exists()


def test_a_callback_can_stop():
    class Stop(BaseCallback):
        def _on_step(self):
            return self.num_timesteps < 10

    assert TRPL("MlpPolicy", target_env(), **SMALL).learn(64, callback=Stop()).num_timesteps == 10


def test_equal_seeds_equal_weights():
    first, second, other = (
        weights(TRPL("MlpPolicy", target_env(), **SMALL | {"seed": seed}).learn(64)) for seed in (3, 3, 4)
    )
    assert_same(first, second)
    assert not torch.equal(first["action_net.weight"], other["action_net.weight"])


def test_set_parameters():
    first, second = (TRPL("MlpPolicy", target_env(), **SMALL | {"seed": seed}) for seed in (0, 1))
    first.learn(64)
    second.set_parameters(first.get_parameters())
    assert_same(weights(first), weights(second))
    assert second.policy.value_optimizer.state_dict()["state"]
    with pytest.raises(ValueError, match="Names of parameters do not match"):
        second.set_parameters({"policy": first.policy.state_dict()})


class Wide(BaseFeaturesExtractor):
    def __init__(self, observation_space: spaces.Box, width: int = 5) -> None:
        super().__init__(observation_space, features_dim=width)
        self.layer = nn.Linear(2, width)

    def forward(self, observations):
        return torch.relu(self.layer(observations))


def test_custom_networks_and_features_extractor():
    kwargs = {
        "net_arch": {"pi": [8], "vf": [16, 4]},
        "activation_fn": nn.ReLU,
        "features_extractor_class": Wide,
        "features_extractor_kwargs": {"width": 7},
    }
    model = TRPL("MlpPolicy", target_env(), policy_kwargs=kwargs, **SMALL)
    before = weights(model)
    model.learn(64)
    assert model.policy.action_net.in_features == 8
    unchanged = [name for name, value in weights(model).items() if torch.equal(value, before[name])]
    assert unchanged == []  # both extractors and all heads learn


def test_dictionaries_of_observations():
    env = DummyVecEnv([lambda: Monitor(Cameras())])
    model = TRPL("MultiInputPolicy", env, **SMALL).learn(64)
    assert model.predict(env.observation_space.sample())[0].shape == (2,)


@pytest.mark.parametrize(("covariance", "contextual"), KINDS)
def test_predict_on_one_and_on_many(covariance, contextual):
    kwargs = {"covariance": covariance, "contextual": contextual}
    model = TRPL("MlpPolicy", target_env(bound=0.3), policy_kwargs=kwargs, **SMALL)
    observations = np.random.default_rng(0).uniform(-1, 1, (5, 2)).astype(np.float32)
    many, _ = model.predict(observations, deterministic=True)
    one, _ = model.predict(observations[2], deterministic=True)
    assert many.shape == (5, 2)
    assert one == pytest.approx(many[2], abs=1e-6)
    samples, _ = model.predict(observations)
    assert np.abs(samples).max() <= 0.3
    assert not np.allclose(samples, many)


@pytest.mark.parametrize(("covariance", "raw"), [("diagonal", [0.3, -0.5]), ("full", [0.3, -0.5, 0.8])])
def test_samples_have_the_covariance_of_the_gaussian(covariance, raw):
    model = TRPL("MlpPolicy", target_env(), policy_kwargs={"covariance": covariance}, **SMALL)
    with torch.no_grad():
        model.policy.spread.copy_(torch.tensor(raw))
        mean, scale = model.policy.gaussian(torch.zeros(1, 2))
        actions, _, log_probs = model.policy(torch.zeros(20_000, 2))
    chol = torch.diag(scale) if covariance == "diagonal" else scale
    assert torch.cov(actions.T) == pytest.approx(chol @ chol.T, abs=0.05)
    host = torch.distributions.MultivariateNormal(mean[0], scale_tril=chol)
    assert torch.allclose(log_probs, host.log_prob(actions), atol=1e-4)


def test_raw_actions_are_learned_from_and_clipped_ones_executed():
    inner = Target(bound=0.1)
    model = TRPL("MlpPolicy", DummyVecEnv([lambda: Monitor(inner)]), **SMALL).learn(32)
    raw, executed = model.rollout_buffer.actions.reshape(-1, 2), np.array(inner.seen)
    assert np.abs(raw).max() > 1.0
    assert executed == pytest.approx(np.clip(raw, -0.1, 0.1))


def test_the_first_step_is_the_policy_gradient():
    """At the old policy nothing is projected: Adam's first step is −lr · g/(|g| + ε), g that of −E[log π · A]."""
    model = TRPL("MlpPolicy", target_env(), **SMALL | {"n_epochs": 1, "n_epochs_vf": 0, "batch_size": 32})
    before = weights(model)
    gradients = {}

    def remember(m):
        buffer = m.rollout_buffer
        observations, actions, advantages = (
            torch.as_tensor(x[:, 0]) for x in (buffer.observations, buffer.actions, buffer.advantages)
        )
        mean, std = m.policy.gaussian(observations)
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        loss = -(torch.distributions.Normal(mean, std).log_prob(actions).sum(-1) * advantages).mean()
        names = ["action_net.weight", "mlp_extractor.policy_net.0.weight"]
        found = torch.autograd.grad(loss, [m.policy.get_parameter(name) for name in names])
        gradients.update(zip(names, found, strict=True))

    model.learn(32, callback=AtEachRollout(remember))
    for name, gradient in gradients.items():
        moved = weights(model)[name] - before[name]
        assert torch.allclose(moved, -5e-5 * gradient / (gradient.abs() + 1e-5), atol=2e-7), name


def test_policy_and_value_are_fitted_apart():
    policy_only, value_only = (
        TRPL("MlpPolicy", target_env(), **SMALL | epochs) for epochs in ({"n_epochs_vf": 0}, {"n_epochs": 0})
    )
    for model, moving in ((policy_only, ("action_net", "policy_net", "spread")), (value_only, ("value_net",))):
        before = weights(model)
        model.learn(32)
        moved = {name for name, value in weights(model).items() if not torch.equal(value, before[name])}
        assert moved
        assert all(any(part in name for part in moving) for name in moved), moved


class OddlyNamed(nn.Module):
    """Networks of policy and value function under names that Stable-Baselines3 does not use."""

    def __init__(self, size):
        super().__init__()
        self.first, self.second, self.both = nn.Linear(size, 8), nn.Linear(size, 8), nn.Linear(size, size)
        self.latent_dim_pi = self.latent_dim_vf = 8

    def forward(self, features):
        return self.forward_actor(features), self.forward_critic(features)

    def forward_actor(self, features):
        return self.first(self.both(features))

    def forward_critic(self, features):
        return self.second(self.both(features))


class OwnExtractor(ActorCriticPolicy):
    def _build_mlp_extractor(self):
        self.mlp_extractor = OddlyNamed(self.features_dim)


def test_a_value_function_under_any_name_learns_with_its_own_optimiser():
    model = TRPL(OwnExtractor, target_env(), **EAGER)
    networks = model.policy.mlp_extractor
    fitted = {id(p) for group in model.policy.value_optimizer.param_groups for p in group["params"]}
    wanted = [*networks.second.parameters(), *model.policy.value_net.parameters()]
    assert fitted == {id(p) for p in wanted}
    before = [p.detach().clone() for p in networks.parameters()]
    model.learn(32)
    assert not any(torch.equal(old, new) for old, new in zip(before, networks.parameters(), strict=True))


def test_it_learns_a_known_answer():
    settings = SMALL | {"n_steps": 64, "batch_size": 64, "n_epochs": 10, "n_epochs_vf": 5, "learning_rate": 3e-3}
    model = TRPL("MlpPolicy", target_env(4), **settings).learn(64 * 4 * 10)
    action, _ = model.predict(np.zeros((1, 2), np.float32), deterministic=True)
    assert action[0] == pytest.approx([0.6, 0.6], abs=0.15)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"projection": "klx"}, "projection must be one of"),
        ({"entropy_schedule": "steps"}, "entropy_schedule must be one of"),
        ({"projection_kwargs": {"foo": 1}}, "projection_kwargs do not fit projection 'kl': .*foo"),
        ({"mean_bound": "3e-2"}, "mean_bound must be a finite number, not '3e-2'"),
        ({"cov_bound": math.inf}, "cov_bound must be a finite number"),
        ({"mean_bound": lambda progress: 0.03 * progress}, "mean_bound must be a finite number, not <function"),
        ({"temperature": 0.0}, "temperature must be positive"),
        ({"batch_size": 31}, "minibatch of one sample"),
        ({"policy_kwargs": {"covariance": "low-rank"}}, "covariance must be one of"),
        ({"use_sde": True, "policy_kwargs": {"contextual": True}}, "leave out covariance and contextual"),
        ({"use_sde": True, "policy_kwargs": {"squash_output": True}}, "no actions before squashing"),
    ],
)
def test_what_cannot_be_is_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        TRPL("MlpPolicy", target_env(), **SMALL | settings)


@pytest.mark.parametrize("algorithm", ["RecurrentPPO", "MaskablePPO"])
def test_policies_with_memory_or_masks_are_refused(algorithm):
    contrib = pytest.importorskip("sb3_contrib", reason="sb3-contrib is not installed")
    policies = getattr(contrib, algorithm).policy_aliases
    with pytest.raises(TypeError, match=r"without memory or masks, not a (Recurrent|Maskable)ActorCriticPolicy"):
        TRPL(next(iter(policies.values())), DummyVecEnv([lambda: IdentityEnv(2)]), **SMALL)


def test_a_batch_size_that_a_callback_sets_is_checked_too():
    model = TRPL("MlpPolicy", target_env(), **SMALL)
    model.batch_size = 31
    with pytest.raises(ValueError, match="minibatch of one sample"):
        model.learn(32)


@pytest.mark.parametrize("normalise", [True, False])
def test_advantages_are_normalised_or_left_as_they_are(normalise):
    """In the first minibatch, the whole rollout, every ratio is 1: the surrogate is minus the mean advantage."""
    settings = SMALL | {"n_steps": 32, "batch_size": 32, "n_epochs": 1}
    model = TRPL("MlpPolicy", target_env(), **settings, normalize_advantage=normalise).learn(32)
    mean = float(model.rollout_buffer.advantages.mean())
    assert abs(mean) > 0.01
    assert model.logger.name_to_value["train/policy_loss"] == pytest.approx(0.0 if normalise else -mean, abs=1e-5)


def test_a_single_sample_is_a_minibatch_where_nothing_is_normalised():
    model = TRPL("MlpPolicy", target_env(), **SMALL | {"n_steps": 3, "batch_size": 1}, normalize_advantage=False)
    model.learn(3)
    assert all(value.isfinite().all() for value in weights(model).values())


def test_what_policy_and_value_function_share_learns_with_the_policy():
    kwargs = {"features_extractor_class": Wide, "share_features_extractor": True}
    for epochs, moves in (({"n_epochs": 0}, False), ({"n_epochs_vf": 0}, True)):
        model = TRPL("MlpPolicy", target_env(), policy_kwargs=kwargs, **SMALL | epochs)
        before = weights(model)["features_extractor.layer.weight"]
        model.learn(32)
        assert torch.equal(before, weights(model)["features_extractor.layer.weight"]) is not moves


SPACES = {
    "Discrete": (IdentityEnv, spaces.Discrete, lambda policy: Categorical(policy.distribution.logits)),
    "MultiDiscrete": (
        IdentityEnvMultiDiscrete,
        spaces.MultiDiscrete,
        lambda policy: Product(tuple(Categorical(part.logits) for part in policy.distribution)),
    ),
    "MultiBinary": (IdentityEnvMultiBinary, spaces.MultiBinary, lambda policy: Bernoulli(policy.distribution.logits)),
}


@pytest.mark.parametrize("policy", ["MlpPolicy", ActorCriticPolicy])
@pytest.mark.parametrize("name", SPACES)
def test_discrete_actions_stay_within_the_bound(name, policy, tmp_path):
    make, kind, read = SPACES[name]
    settings = EAGER | {"n_steps": 64, "mean_bound": 0.02, "cov_bound": 1e-3}
    model = TRPL(policy, DummyVecEnv([lambda: Monitor(make(3))]), **settings)
    assert isinstance(model.action_space, kind)
    seen = []

    def remember(m):
        observations = torch.as_tensor(m.rollout_buffer.observations[:, 0])
        with torch.no_grad():
            seen.append((observations, read(m.policy.get_distribution(observations))))

    model.learn(64, callback=AtEachRollout(remember))
    found = model.logger.name_to_value
    assert found["train/before_mean_max"] > found["train/after_mean_max"]  # the layer had something to do
    assert found["train/after_mean_max"] <= 0.021 * 1.001
    with torch.no_grad():
        exact = kl(read(model.policy.get_distribution(seen[0][0])), seen[0][1])
    assert found["train/kl_max"] == pytest.approx(exact.max().item(), rel=1e-4)
    model.save(tmp_path / "model")
    observation = model.env.reset()
    loaded = TRPL.load(tmp_path / "model", device="cpu")
    assert np.array_equal(*(m.predict(observation, deterministic=True)[0] for m in (loaded, model)))


def test_stable_baselines_own_gaussian_policy():
    model = TRPL(ActorCriticPolicy, target_env(), **EAGER).learn(64)
    found = model.logger.name_to_value
    assert found["train/after_mean_max"] <= 0.03 * 1.001
    assert found["train/after_cov"] == pytest.approx(1e-3, rel=0.01)  # its one deviation is set to the projected one
    assert found["train/std"] == pytest.approx(model.policy.log_std.exp().mean().item(), rel=1e-5)


@pytest.mark.parametrize("policy", ["MlpPolicy", ActorCriticPolicy])
@pytest.mark.parametrize("projection", ["kl", "w2", "frobenius", "kl-joint"])
def test_noise_that_depends_on_the_state(policy, projection, tmp_path):
    settings = {"use_sde": True, "sde_sample_freq": 4, "projection": projection}
    model = TRPL(policy, target_env(2), **EAGER | settings)
    noise = model.policy.log_std.detach().clone()
    seen = []

    def compare(m):  # Stable-Baselines3's density of the actions, as its PPO would compute it
        data = next(m.rollout_buffer.get(batch_size=None))
        seen.append(m.policy.evaluate_actions(data.observations, data.actions)[1])
        assert torch.allclose(log_prob(predicted(m.policy, data.observations), data.actions), seen[-1], atol=1e-5)
        assert torch.allclose(data.old_log_prob, seen[-1], atol=1e-4)

    model.learn(128, callback=AtEachRollout(compare))
    found = model.logger.name_to_value
    assert len(seen) == 2
    assert found["train/after_mean_max"] <= (0.031 if projection == "kl-joint" else 0.03) * 1.001
    assert found["train/before_mean_max"] > found["train/after_mean_max"]
    assert not torch.equal(noise, model.policy.log_std)
    model.save(tmp_path / "model")
    loaded = TRPL.load(tmp_path / "model", env=target_env(2))
    assert_same(weights(loaded), weights(model))
    assert loaded.learn(64).use_sde


def test_the_deviation_of_a_state_is_that_of_its_noise():
    model = TRPL("MlpPolicy", target_env(), **SMALL, use_sde=True)
    observation = torch.tensor([[0.3, -0.7]])
    drawn = []
    for _ in range(4000):
        model.policy.reset_noise()
        drawn.append(model.policy(observation)[0].detach())
    mean, std = predicted(model.policy, observation)
    assert std.shape == mean.shape  # one for each state, and not one for all
    assert torch.cat(drawn).std(0) == pytest.approx(std[0].detach(), rel=0.05)


@pytest.mark.parametrize("projection", ["w2", "frobenius"])
def test_what_is_for_gaussians_says_so(projection):
    with pytest.raises(ValueError, match=rf"'{projection}' is for Gaussian policies, .*Discrete\(3\).*'kl-joint'"):
        TRPL("MlpPolicy", IdentityEnv(3), projection=projection, **SMALL)
    with pytest.raises(ValueError, match="for Box actions"):
        TRPL("MlpPolicy", IdentityEnv(3), policy_kwargs={"contextual": True}, **SMALL)
