import json

import numpy as np
import pytest
from worlds import LinearActor

from trpl.rollouts import Collector, Rollout


def collector_of(env_id, **options):
    return Collector(env_id, seed=5, **{"normalise_observations": False, **options})


def assert_identical(first: Rollout, second: Rollout):
    for name, a, b in zip(Rollout._fields, first, second, strict=True):
        assert a.tobytes() == b.tobytes(), name


@pytest.mark.parametrize("num_envs", [1, 3])
@pytest.mark.parametrize(
    ("env_id", "terminated", "truncated"),
    [
        ("test/Terminates-v0", 1, 0),
        ("test/Truncates-v0", 0, 1),
        ("test/Both-v0", 1, 1),
        ("test/Reuses-v0", 0, 1),  # the next episode overwrites its last observation
    ],
)
def test_endings_are_kept_apart_and_the_last_observation_is_the_true_one(env_id, terminated, truncated, num_envs):
    rollout = collector_of(env_id, num_envs=num_envs).collect(LinearActor(2, 1), num_steps=10, iteration=0)
    steps = np.tile(np.array([0, 1, 2, 3, 0, 1, 2, 3, 0, 1])[:, None], num_envs)
    np.testing.assert_array_equal(rollout.observations[..., 0], steps)
    np.testing.assert_array_equal(rollout.next_observations[..., 0], steps + 1)  # 4, never the 0 of the next episode
    np.testing.assert_array_equal(rollout.next_observations[..., 1], rollout.observations[..., 1])  # same episode
    np.testing.assert_array_equal(rollout.rewards, steps + 1)
    last = steps == 3
    np.testing.assert_array_equal(rollout.terminated, last & bool(terminated))
    np.testing.assert_array_equal(rollout.truncated, last & bool(truncated))
    np.testing.assert_array_equal(rollout.episode_returns, [10.0] * 2 * num_envs)
    np.testing.assert_array_equal(rollout.episode_lengths, [4] * 2 * num_envs)
    assert [a.dtype for a in rollout[:4]] == [np.float32] * 4


def test_episodes_of_one_step():
    rollout = collector_of("test/OneStep-v0").collect(LinearActor(2, 1), num_steps=3, iteration=0)
    np.testing.assert_array_equal(rollout.next_observations[..., 0], np.ones((3, 1)))
    assert rollout.terminated.all()
    np.testing.assert_array_equal(rollout.episode_lengths, [1, 1, 1])


def test_episodes_run_on_from_one_rollout_to_the_next():
    collector = collector_of("test/Terminates-v0")
    first = collector.collect(LinearActor(2, 1), num_steps=3, iteration=0)
    second = collector.collect(LinearActor(2, 1), num_steps=3, iteration=1)
    assert len(first.episode_returns) == 0
    np.testing.assert_array_equal(second.episode_returns, [10.0])
    np.testing.assert_array_equal(second.episode_lengths, [4])
    np.testing.assert_array_equal(first.next_observations[-1], second.observations[0])


def test_an_episode_over_many_rollouts_is_counted_whole():
    collector = collector_of("test/Drift-v0")
    rollouts = [collector.collect(LinearActor(2, 1), num_steps=20, iteration=i) for i in range(3)]
    assert [len(rollout.episode_returns) for rollout in rollouts] == [0, 0, 1]
    assert rollouts[2].episode_lengths == 50
    assert rollouts[2].episode_returns == 50 * 51 / 2


@pytest.mark.parametrize("num_envs", [1, 2])
def test_the_policy_sees_observations_normalised_with_themselves_included(num_envs):
    collector = collector_of("test/Drift-v0", num_envs=num_envs, normalise_observations=True)
    rollout = collector.collect(LinearActor(2, 1), num_steps=120, iteration=0)
    plain = collector_of("test/Drift-v0", num_envs=num_envs)

    class Repeat:
        """The same actions, without seeing."""

        rows = iter(rollout.actions if num_envs > 1 else rollout.actions[:, 0])

        def noise(self, rng, num_steps, states):
            return range(num_steps)

        def sample(self, observations, noise):
            return next(self.rows)

        def prepared(self, noise):
            return self.sample, noise

    raw = plain.collect(Repeat(), num_steps=120, iteration=0).observations.astype(np.float64)
    for t in (0, 1, 49, 50, 51, 119):
        seen = raw[: t + 1].reshape(-1, 2)
        expected = (raw[t] - seen.mean(axis=0)) / np.sqrt(seen.var(axis=0) + 1e-8)
        np.testing.assert_allclose(rollout.observations[t], expected, rtol=1e-4, atol=1e-4)
    ongoing = ~(rollout.terminated | rollout.truncated)[:-1]
    np.testing.assert_array_equal(rollout.next_observations[:-1][ongoing], rollout.observations[1:][ongoing])
    assert not np.array_equal(rollout.next_observations[49], rollout.observations[50])
    assert collector.normaliser.count == 121 * num_envs  # the last observation of an episode only passes through


def test_actions_are_mean_plus_scaled_noise_and_go_out_raw():
    actor = LinearActor(2, 1, std=0.5)
    rollout = collector_of("test/Drift-v0").collect(actor, num_steps=400, iteration=0)
    noise = (rollout.actions - actor.mode(rollout.observations)) / 0.5
    assert abs(noise.mean()) < 0.15
    assert abs(noise.std() - 1.0) < 0.15
    assert np.abs(rollout.actions).max() > 1.0  # the space ends at 1


def test_rewards_are_normalised_where_asked_and_returns_stay_raw():
    options = {"num_steps": 8, "iteration": 0}
    plain = collector_of("test/Terminates-v0").collect(LinearActor(2, 1), **options)
    scaled = collector_of("test/Terminates-v0", normalise_rewards=True, reward_clip=0.7).collect(
        LinearActor(2, 1), **options
    )
    assert scaled.rewards.max() == np.float32(0.7)
    assert (scaled.rewards != plain.rewards).all()
    np.testing.assert_array_equal(scaled.episode_returns, plain.episode_returns)


def test_seed_and_iteration_decide():
    actor = LinearActor(2, 1)
    first = collector_of("test/Drift-v0").collect(actor, num_steps=60, iteration=3)
    assert_identical(first, collector_of("test/Drift-v0").collect(actor, num_steps=60, iteration=3))
    other_noise = collector_of("test/Drift-v0").collect(actor, num_steps=60, iteration=4)
    assert not np.array_equal(first.actions, other_noise.actions)
    other_seed = Collector("test/Drift-v0", seed=6, normalise_observations=False)
    assert not np.array_equal(first.observations[0], other_seed.collect(actor, num_steps=1, iteration=3).observations)


def test_environments_side_by_side_differ():
    rollout = collector_of("test/Drift-v0", num_envs=2).collect(LinearActor(2, 1), num_steps=2, iteration=0)
    assert (rollout.observations[0, 0] != rollout.observations[0, 1]).any()
    assert (rollout.actions[0, 0] != rollout.actions[0, 1]).any()


@pytest.mark.parametrize("num_envs", [1, 2])
@pytest.mark.parametrize("env_id", ["test/Drift-v0", "Hopper-v4"])
def test_a_restored_collector_goes_on_bit_for_bit(env_id, num_envs):
    options = {"num_envs": num_envs, "normalise_rewards": True, "reward_clip": 10.0, "normalise_observations": True}
    original = collector_of(env_id, **options)
    actor = LinearActor(original.observation_size, original.action_size)
    for iteration in range(3):
        original.collect(actor, num_steps=37, iteration=iteration)
    arrays, meta = original.state()
    meta = json.loads(json.dumps(meta))
    arrays = {name: np.array(array) for name, array in arrays.items()}

    restored = collector_of(env_id, **options)
    restored.restore(arrays, meta)
    for iteration in range(3, 6):
        expected = original.collect(actor, num_steps=37, iteration=iteration)
        assert_identical(restored.collect(actor, num_steps=37, iteration=iteration), expected)


def test_a_state_of_something_else_is_refused():
    arrays, meta = collector_of("test/Drift-v0").state()
    with pytest.raises(ValueError, match="1 × test/Drift-v0, not of 2 × test/Drift-v0"):
        collector_of("test/Drift-v0", num_envs=2).restore(arrays, meta)


def test_at_least_one_environment():
    with pytest.raises(ValueError, match="num_envs must be at least 1, got 0"):
        collector_of("test/Drift-v0", num_envs=0)
