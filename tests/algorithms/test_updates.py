"""What the update rules promise about the policy, and that each option has an effect.

That they compute what they should is in test_restatement.
"""

import jax
import numpy as np
import pytest
import restated
import small

from trpl.gaussians import DiagGaussian, entropy
from trpl.policies.heads import GaussianHead
from trpl.policies.networks import PolicyNetwork

OTHER = {"discount": 0.9, "gae_lambda": 0.7, "gradient_clip": 0.5, "entropy_weight": 0.05, "regression_weight": 2.0}
# options of an update and a method that has them; the restatement shows their effect, the trainer equals the
# restatement
OPTIONS = [
    *(("kl", {name: value}) for name, value in OTHER.items()),
    ("kl", {"mean_bound": 0.02}),
    ("kl", {"cov_bound": 3e-4}),
    ("kl", {"policy_epochs": 3}),
    ("kl", {"value_epochs": 3}),
    ("kl", {"learning_rate": 2e-2}),
    ("kl", {"learning_rate_vf": 2e-3}),
    ("kl", {"minibatch_size": 20}),
    ("kl", {"regression": "full"}),
    ("frobenius", {"whitened": True}),
    ("ppo", {"ratio_clip": 0.1}),
    ("ppo", {"value_clip": None}),
]


def restated_update(settings, start):
    """Weights of policy and value function after one update, by the restatement, which the trainer equals."""
    learner = restated.learner(settings, start.policy, start.value)
    learner.update(small.batch(), np.random.default_rng([0, 0]))
    return learner.weights()


@pytest.mark.parametrize(
    ("method", "overrides"), [("kl", {}), ("w2", {"contextual": True}), ("frobenius", {"covariance": "full"})], ids=str
)
def test_projected_policy_is_within_its_bounds_on_every_state(method, overrides):
    settings = small.config(method, **overrides)
    _, metrics = small.update(settings)
    assert metrics["before_mean_max"] > settings.mean_bound, "steps too small for the test to say anything"
    assert 0 < metrics["projected_mean_share"] <= 1
    assert metrics["after_mean_max"] <= settings.mean_bound * (1 + 1e-4)
    assert metrics["after_cov_max"] <= settings.cov_bound * (1 + 1e-3)
    if not settings.contextual:  # set to the projected one
        assert metrics["entropy"] == pytest.approx(metrics["projected_entropy"], abs=1e-4)


@pytest.mark.parametrize(("method", "change"), OPTIONS, ids=str)
def test_each_option_has_an_effect(method, change):
    base = {"learning_rate_vf": 0.05} if method == "ppo" else {}  # values move further than the clip
    settings, changed = small.config(method, **base), small.config(method, **(base | change))
    start = jax.device_get(small.init(settings))
    first, second = (restated_update(s, start) for s in (settings, changed))
    assert any(not np.allclose(a[n], b[n], atol=1e-7) for a, b in zip(first, second, strict=True) for n in a)


@pytest.mark.parametrize(
    ("method", "equality", "schedule"),
    [
        ("kl-e", True, "exponential"),
        ("w2-e", False, "exponential"),
        ("kl-joint", True, "exponential"),
        ("kl-e", True, "linear"),
    ],
)
def test_entropy_schedule_is_met_or_never_undercut(method, equality, schedule):
    temperature = {"temperature": 0.5} if schedule == "exponential" else {}
    settings = small.config(
        method,
        entropy_schedule=schedule,
        entropy_equality=equality,
        target_entropy=0.25,
        total_steps=100 * small.STEPS * small.ENVS,
        **temperature,
    )
    state, initial, final = small.init(settings), None, 0.25 * small.ACT
    for i in range(4):
        state, metrics = small.update(settings, state, seed=i)
        initial = initial if initial is not None else metrics["entropy_target"]
        left = 0.5 ** (10 * i / 100) if schedule == "exponential" else 1 - i / 100
        assert metrics["entropy_target"] == pytest.approx(final + (initial - final) * left, abs=2e-6)
        if equality:
            assert metrics["entropy"] == pytest.approx(metrics["entropy_target"], abs=2e-6)
        else:
            assert metrics["entropy"] >= metrics["entropy_target"] - 2e-6


def test_joint_projection_asks_for_no_entropy_out_of_reach():
    """Ten epochs to go down to κ: a step that no policy within the bound can take."""
    settings = small.config("kl-joint", entropy_schedule="exponential", entropy_equality=True, target_entropy=-3.0)
    _, metrics = small.update(settings, times=2)
    assert metrics["entropy"] > metrics["entropy_target"] + 0.5
    assert metrics["after_mean"] + metrics["after_cov"] <= settings.bound * (1 + 1e-3)


def test_joint_projection_keeps_the_whole_kl_within_its_bound():
    settings = small.config("kl-joint")
    _, metrics = small.update(settings)
    assert metrics["after_mean"] + metrics["after_cov"] <= settings.bound * (1 + 1e-3)
    assert metrics["kl_max"] > settings.bound


def test_regression_keeps_the_network_near_its_projection():
    """No penalty < a strong one, and full regression, in how near the network stays to the trust region."""
    common = {"policy_epochs": 6}
    none = small.update(small.config("w2", regression_weight=0.0, **common))[1]["before_mean"]
    strong = small.update(small.config("w2", regression_weight=100.0, **common))[1]["before_mean"]
    full = small.update(small.config("w2", regression="full", regression_epochs=40, **common))[1]["before_mean"]
    assert strong < 0.7 * none
    assert full < 0.7 * none


def test_ppo_learning_rates_fall_linearly():
    settings = small.config("ppo")
    state = small.init(settings)
    for i in range(3):
        state, metrics = small.update(settings, state, seed=i)
        assert metrics["learning_rate"] == pytest.approx(settings.learning_rate * (1 - i / 10))
        assert metrics["learning_rate_vf"] == pytest.approx(settings.learning_rate_vf * (1 - i / 10))


def test_measurements_are_those_of_the_policy_that_acts_next():
    settings = small.config("kl", contextual=True)
    start = jax.device_get(small.init(settings))
    state, metrics = small.update(settings)
    policy = PolicyNetwork(obs_size=small.OBS, head=GaussianHead(small.ACT, contextual=True), hidden_sizes=(5, 4))
    observations = small.batch().observations.reshape(-1, small.OBS)
    new, old = (policy(weights, observations) for weights in (state.policy, start.policy))
    ratio = np.square(new.std / old.std)
    kl = 0.5 * (np.square((new.mean - old.mean) / old.std) + ratio - 1 - np.log(ratio)).sum(-1)
    assert metrics["kl"] == pytest.approx(kl.mean(), rel=1e-4)
    assert metrics["kl_max"] == pytest.approx(kl.max(), rel=1e-4)
    assert metrics["entropy"] == pytest.approx(float(entropy(new).mean()), rel=1e-5)
    assert metrics["std_mean"] == pytest.approx(float(new.std.mean()), rel=1e-5)
    assert isinstance(new, DiagGaussian)


def same(a, b):
    return all(np.array_equal(x, y) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))


def test_same_seed_same_bits():
    settings = small.config("kl")
    first, again, other = (small.update(settings, times=2, seed=s)[0] for s in (0, 0, 1))
    assert same(first, again)
    assert not same(first, other)
