"""Training of episodic policies with one full covariance, in single precision as the trainer has it."""

import numpy as np
import pytest

import tiny
import trpl
from trpl.runs.run import train

pytestmark = pytest.mark.usefixtures("compiled_in_haste")


def test_a_full_covariance_of_sixty_five_dimensions_holds_its_bound(tmp_path):
    """A learning rate that carries every epoch's policy out of the region; float32, 13 weights for each of 5 joints."""
    changes = {"covariance": "full", "contextual": False, "gae_lambda": 1.0, "env_kwargs": {"num_bases": 13}}
    config = tiny.config(
        "kl", "trpl/EpisodicReacher5-v0", learning_rate=0.02, policy_epochs=4, total_steps=64, **changes
    )
    run = trpl.load(train(config, tmp_path / "run", progress=False).folder)
    table = run.table()
    assert table["before_mean_max"].min() > config.mean_bound
    assert table["before_cov_max"].min() > config.cov_bound
    assert table["after_mean_max"].max() <= config.mean_bound * 1.001
    assert table["after_cov_max"].max() <= config.cov_bound * 1.001
    assert run.policy(np.zeros((1, 2))).shape == (1, 65)
