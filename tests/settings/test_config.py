"""Configuration: one spelling, refused with the nearest right one."""

import json

import numpy as np
import pytest

from trpl.errors import ConfigError
from trpl.methods import names
from trpl.methods.registry import config_from_json, settings
from trpl.presets import named_sweeps, preset
from trpl.presets.listing import SHOWN, all_presets, one_preset

REFUSED = [
    ("kl", {"mean_bond": 0.1}, "no setting 'mean_bond'; did you mean 'mean_bound'"),
    ("kl", {"mean_bound": 0.0}, "mean_bound must be above 0, not 0"),
    ("kl", {"discount": 1.5}, "discount must be at most 1, not 1.5"),
    ("kl", {"learning_rate": float("nan")}, "learning_rate must be a finite number"),
    ("kl", {"policy_epochs": 0}, "policy_epochs must be at least 1, not 0"),
    ("kl", {"policy_epochs": 2.5}, "policy_epochs must be a whole number, not 2.5"),
    ("kl", {"total_steps": 1e13}, "total_steps must be at most 1e"),
    (
        "kl",
        {"env_kwargs": {"track": {1, 2}}},
        r"'track' in env_kwargs must be something that JSON can hold.*not \{1, 2\}",
    ),
    ("kl", {"env_kwargs": {1: 2}}, "env_kwargs must be values by name, and 1 is not text"),
    ("kl", {"contextual": 1}, "contextual must be true or false, not 1"),
    ("kl", {"hidden_sizes": (64, 0)}, "hidden_sizes must be at least 1, not 0"),
    ("kl", {"hidden_sizes": ()}, "hidden_sizes must be one or more whole numbers"),
    ("kl", {"covariance": "diag"}, "covariance 'diag' is not one of diagonal, full; did you mean 'diagonal'"),
    ("ppo", {"mean_bound": 0.1}, "mean_bound does not apply to method 'ppo'"),
    ("kl", {"ratio_clip": 0.1}, "ratio_clip does not apply to method 'kl'"),
    ("kl", {"mean_bound": None}, "method 'kl' takes mean_bound and cov_bound"),
    ("kl", {"temperature": 0.5}, "temperature has no effect without an entropy_schedule"),
    ("kl-e", {"entropy_schedule": "none"}, "without a schedule it is 'kl'"),
    ("kl-e", {"entropy_schedule": "linear", "temperature": 0.5}, "temperature has no effect without"),
    ("kl", {"regression_epochs": 3}, "regression_epochs has no effect without regression 'full'"),
    ("kl", {"regression": "full", "regression_weight": 1.0}, "regression_weight must be 0"),
    ("kl", {"reward_clip": 5.0}, "reward_clip has no effect without normalise_rewards"),
    ("kl", {"num_envs": 3}, "is not a multiple of num_envs 3; the nearest multiples are 2046 and 2049"),
    ("kl", {"minibatch_size": 4096}, "larger than rollout_size"),
    ("kl", {"minibatch_size": 89}, "leaves one sample over"),
    ("papi", {"contextual": True}, "method 'papi' has one covariance for all states"),
    ("kll", {}, "no method 'kll'.*did you mean 'kl'"),
]


@pytest.mark.parametrize(("method", "overrides", "message"), REFUSED, ids=str)
def test_refused_with_what_was_wanted(method, overrides, message):
    with pytest.raises(ConfigError, match=message):
        preset(method, "HalfCheetah-v4", **overrides)


def test_numbers_of_numpy_and_whole_floats():
    given = {"seed": np.int64(3), "discount": np.float64(0.5), "hidden_sizes": np.array([8, 4]), "total_steps": 1e6}
    config = preset("kl", "Hopper-v4", contextual=np.True_, env_kwargs={"g": np.float32(0.5)}, **given)
    assert config == preset(
        "kl",
        "Hopper-v4",
        seed=3,
        discount=0.5,
        hidden_sizes=(8, 4),
        total_steps=10**6,
        contextual=True,
        env_kwargs={"g": 0.5},
    )
    assert config_from_json(json.loads(json.dumps(config.to_json()))) == config


def test_json_and_back():
    config = preset("w2-e", "Ant-v4", seed=3)
    assert config_from_json(json.loads(json.dumps(config.to_json()))) == config


def test_epochs_are_rounded_up():
    assert preset("kl", "Hopper-v4", total_steps=2049).num_epochs == 2
    assert preset("kl", "Hopper-v4").num_epochs == 1465


def test_evaluations_are_sparse_but_for_the_two_windows():
    config = preset("kl", "Hopper-v4", total_steps=2048 * 200, eval_every=25)
    evaluated = [epoch for epoch in range(1, 201) if config.evaluates(epoch)]
    assert evaluated == [25, *range(41, 61), 75, 100, 125, 150, 175, *range(181, 201)]


def test_every_setting_has_help_and_can_be_shown():
    for field in settings().values():
        assert field.metadata["help"]
    assert set(SHOWN) <= set(settings())


# the paper's tables, typed again from the TeX: Frobenius, W2, KL, PAPI, PPO, PPO-M
COLUMNS = ("frobenius", "w2", "kl", "papi", "ppo", "ppo-m")
TABLES = {
    "HalfCheetah-v4": {
        "rollout_size": [2048] * 6,
        "mean_bound": [0.03] * 3 + [None] * 3,
        "bound": [None] * 3 + [0.015, None, None],
        "cov_bound": [1e-3] * 3 + [None] * 3,
        "value_epochs": [10] * 6,
        "policy_epochs": [20] * 3 + [10] * 3,
        "learning_rate": [5e-5] * 3 + [3e-4] * 3,
        "learning_rate_vf": [4.5e-4] * 3 + [2.5e-4] * 3,
        "minibatch_size": [32] * 3 + [64] * 3,
    },
    "Humanoid-v4": {
        "rollout_size": [16384] * 6,
        "mean_bound": [0.05] * 3 + [None] * 3,
        "bound": [None] * 3 + [0.015, None, None],
        "cov_bound": [1e-4, 0.01, 1e-4] + [None] * 3,
        "value_epochs": [10] * 6,
        "policy_epochs": [10] * 6,
        "learning_rate": [1e-4] * 6,
        "learning_rate_vf": [4.5e-4] * 3 + [1e-4] * 3,
        "minibatch_size": [256] * 3 + [512] * 3,
    },
    "trpl/Reacher5Sparse-v0": {
        "rollout_size": [16384] * 6,
        "mean_bound": [0.03] * 3 + [None] * 3,
        "bound": [None] * 3 + [0.03, None, None],
        "cov_bound": [5e-5, 1e-3, 5e-5] + [None] * 3,
        "value_epochs": [10] * 6,
        "policy_epochs": [20] * 6,
        "learning_rate": [3e-4] * 3 + [1e-4] * 3,
        "learning_rate_vf": [4.5e-4] * 3 + [1e-4] * 3,
        "minibatch_size": [256] * 3 + [512] * 3,
    },
}
SHARED = {
    "gae_lambda": [0.95] * 6,
    "discount": [0.99] * 6,
    "regression_weight": [8.0] * 3 + [None] * 3,
    "entropy_weight": [0.0] * 6,
    "normalise_observations": [True] * 6,
    "normalise_rewards": [False] * 3 + [True, True, False],
    "observation_clip": [None] * 3 + [10.0, 10.0, None],
    "reward_clip": [None] * 3 + [10.0, 10.0, None],
    "value_clip": [None] * 3 + [0.2, 0.2, None],
    "ratio_clip": [None] * 3 + [0.2] * 3,
    "contextual": [False] * 6,
    "hidden_sizes": [(64, 64)] * 6,
    "hidden_sizes_vf": [(64, 64)] * 6,
}


@pytest.mark.parametrize("env_id", TABLES)
def test_presets_are_the_tables(env_id):
    for name, row in (TABLES[env_id] | SHARED).items():
        assert [preset(method, env_id).get(name) for method in COLUMNS] == row, name


@pytest.mark.parametrize(("env_id", "temperature", "equality"), [("Ant-v4", 0.5, False), ("Humanoid-v4", 0.2, True)])
def test_entropy_rows_of_the_tables(env_id, temperature, equality):
    for method in ("kl-e", "w2-e", "frobenius-e"):
        config = preset(method, env_id)
        assert (config.target_entropy, config.temperature, config.entropy_equality) == (0.0, temperature, equality)
        assert config.entropy_schedule == "exponential"


def test_second_covariance_bound_of_the_reacher():
    assert preset("kl", "trpl/Reacher5Sparse-v0", contextual=True).cov_bound == 1e-3
    assert preset("w2", "trpl/Reacher5Sparse-v0", contextual=True).cov_bound == 1e-3


def test_only_full_ppo_lets_the_learning_rate_fall():
    assert [m for m in names() if preset(m, "Hopper-v4").learning_rate_decay] == ["ppo"]


def test_budgets():
    assert preset("kl", "Hopper-v4").total_steps == 3_000_320
    assert preset("kl", "Humanoid-v4").num_epochs == 610


@pytest.mark.parametrize("method", names())
def test_every_preset_says_its_source(method):
    assert "paper" in preset(method, "HalfCheetah-v4").source
    assert "not tuned for it" in preset(method, "Pendulum-v1").source
    assert method in one_preset(method, "HalfCheetah-v4")


def test_listing_names_methods_tasks_and_sweeps():
    text = all_presets()
    for word in (*names(), "Humanoid-v4", "trpl/Reacher5Sparse-v0", *named_sweeps()):
        assert word in text


def test_alpha_sweep_has_penalties_and_full_regression():
    configs = named_sweeps()["alpha"].configs
    assert {c.method for c in configs} == {"w2"}
    assert {c.env_id for c in configs} == {"Ant-v4"}
    assert len({c.regression_weight for c in configs if c.regression == "penalty"}) == 5
    assert [c.regression for c in configs].count("full") == 1
