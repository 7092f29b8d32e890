"""Every method, and every kind of task, for two tiny updates; `stress/faults.py --only methods` does all pairs."""

import numpy as np
import pytest

import tiny
from trpl.errors import ConfigError
from trpl.methods import methods, names
from trpl.runs import records
from trpl.runs.run import train

KINDS = {
    "one action": {"env_id": "Pendulum-v1"},
    "terminating": {"env_id": "Hopper-v4"},
    "many inputs": {"env_id": "Ant-v4"},
    "own task": {"env_id": "trpl/Reacher5Sparse-v0"},
    "several, normalised": {"num_envs": 4, "normalise_rewards": True, "observation_clip": 5.0},
    "full covariance per state": {"covariance": "full", "contextual": True},
}


pytestmark = pytest.mark.usefixtures("compiled_in_haste")


def check_two_updates(config, folder):
    assert train(config, folder, progress=False).epochs == 2
    metrics = records.read(folder, "metrics.jsonl")
    assert all(np.isfinite(line["kl"]) and np.isfinite(line["entropy"]) for line in metrics)


@pytest.mark.parametrize("method", names())
def test_method(method, tmp_path):
    check_two_updates(tiny.config(method, total_steps=64, eval_every=100), tmp_path)


@pytest.mark.parametrize("kind", KINDS)
def test_kind_of_task(kind, tmp_path):
    check_two_updates(tiny.config("ppo-m", total_steps=64, eval_every=100, **KINDS[kind]), tmp_path)


@pytest.mark.parametrize("method", [m.name for m in methods() if not m.contextual])
def test_the_one_pair_that_cannot_be(method):
    with pytest.raises(ConfigError, match="has one covariance for all states"):
        tiny.config(method, contextual=True)
