"""Environments of `envpool`. It is optional: where it is missing, its tests are skipped but for the message."""

import sys

import numpy as np
import pytest
from worlds import LinearActor

from trpl.rollouts import Collector, ObservationNormaliser
from trpl.rollouts.collection import make_lanes


def test_unknown_vectorisations_are_refused():
    with pytest.raises(ValueError, match="'asynchronous' is not one of sync, threads, processes, envpool"):
        make_lanes("test/Drift-v0", num_envs=1, seed=0, vectorisation="asynchronous")


def test_without_envpool_the_message_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "envpool", None)
    with pytest.raises(ImportError, match=r"pip install .trpl\[envpool\]."):
        make_lanes("Hopper-v4", num_envs=2, seed=0, vectorisation="envpool")


@pytest.fixture
def pooled():
    pytest.importorskip("envpool", reason="envpool is optional and not installed")
    return lambda env_id, **options: Collector(env_id, seed=3, vectorisation="envpool", **options)


def test_envpool_has_its_own_tasks_only(pooled):
    with pytest.raises(ValueError, match="envpool has no task 'trpl/Reacher5Sparse-v0'"):
        pooled("trpl/Reacher5Sparse-v0")


@pytest.mark.parametrize("num_envs", [1, 3])
def test_envpool_rollouts_hold_no_resets(pooled, num_envs):
    collector = pooled("Hopper-v4", num_envs=num_envs, normalise_observations=False)
    rollout = collector.collect(LinearActor(11, 3, std=1.0), num_steps=200, iteration=0)
    ended = rollout.terminated | rollout.truncated
    assert ended.sum() > 3
    assert ended.sum() == len(rollout.episode_lengths)
    ongoing = ~ended[:-1]
    np.testing.assert_array_equal(rollout.next_observations[:-1][ongoing], rollout.observations[1:][ongoing])
    after = rollout.observations[1:][ended[:-1]]
    assert (np.abs(after[:, 0] - 1.25) < 0.01).all()  # an episode starts at height 1.25 …
    last = rollout.next_observations[ended]
    assert (np.abs(last[:, 1]) > 0.15).any() or (last[:, 0] < 0.75).any()  # … and ends fallen
    assert (rollout.rewards != 0.0).all()  # a reset would pay nothing


def test_envpool_is_repeatable_but_cannot_be_resumed_exactly(pooled):
    actor = LinearActor(11, 3)
    first, second = pooled("Hopper-v4", num_envs=2), pooled("Hopper-v4", num_envs=2)
    rollouts = [collector.collect(actor, num_steps=50, iteration=0) for collector in (first, second)]
    np.testing.assert_array_equal(rollouts[0].observations, rollouts[1].observations)
    arrays, meta = first.state()
    with pytest.warns(UserWarning, match="envpool cannot replay Hopper-v4"):
        second.restore(arrays, meta)
    assert isinstance(second.normaliser, ObservationNormaliser)
    assert second.normaliser.count == first.normaliser.count + 2  # the new episodes' first observations
    second.collect(actor, num_steps=5, iteration=1)
