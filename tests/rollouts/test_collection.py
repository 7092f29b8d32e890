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


class Repeat:
    """The actions of a rollout again, without seeing, for environments that are stepped one after the other."""

    def __init__(self, actions):
        self.rows = [iter(lane) for lane in np.moveaxis(actions, 1, 0)]

    def noise(self, rng, num_steps, states):
        return range(num_steps)

    def prepared(self, noise):
        rows = self.rows.pop(0)
        return (lambda observation, noise: next(rows)), noise


def test_a_lane_normalises_with_all_before_the_rollout_and_with_its_own_since():
    collector = collector_of("test/Drift-v0", num_envs=2, normalise_observations=True)
    plain = collector_of("test/Drift-v0", num_envs=2)
    rollouts = [collector.collect(LinearActor(2, 1), num_steps=60, iteration=i) for i in range(2)]
    raw = [plain.collect(Repeat(rollout.actions), num_steps=60, iteration=0).observations for rollout in rollouts]
    raw = np.concatenate(raw).astype(np.float64)
    seen = np.concatenate([rollout.observations for rollout in rollouts])
    np.testing.assert_array_equal(seen[0], 0.0)  # each the only one that its lane has seen
    for t in (1, 49, 50, 59, 60, 61, 119):
        shared = raw[: 1 if t <= 60 else 61].reshape(-1, 2)  # the first rollout's next observations are raw[60]
        for n in range(2):
            known = np.concatenate([shared, raw[1 if t <= 60 else 61 : t + 1, n]])
            expected = (raw[t, n] - known.mean(axis=0)) / np.sqrt(known.var(axis=0) + 1e-8)
            np.testing.assert_allclose(seen[t, n], expected, rtol=1e-4, atol=1e-4)
    last = plain.collect(LinearActor(2, 1), num_steps=1, iteration=0).observations
    raw = np.concatenate([raw, last]).reshape(-1, 2)  # the last observation of an episode only passes through
    assert collector.normaliser.count == len(raw)
    np.testing.assert_allclose(collector.normaliser.mean, raw.mean(axis=0), rtol=1e-6)
    np.testing.assert_allclose(collector.normaliser.variance, raw.var(axis=0), rtol=1e-6)


def test_the_policy_sees_observations_normalised_with_themselves_included():
    collector = collector_of("test/Drift-v0", normalise_observations=True)
    rollout = collector.collect(LinearActor(2, 1), num_steps=120, iteration=0)
    raw = collector_of("test/Drift-v0").collect(Repeat(rollout.actions), num_steps=120, iteration=0).observations
    raw = raw.astype(np.float64)
    for t in (0, 1, 49, 50, 51, 119):
        seen = raw[: t + 1].reshape(-1, 2)
        expected = (raw[t] - seen.mean(axis=0)) / np.sqrt(seen.var(axis=0) + 1e-8)
        np.testing.assert_allclose(rollout.observations[t], expected, rtol=1e-4, atol=1e-4)
    ongoing = ~(rollout.terminated | rollout.truncated)[:-1]
    np.testing.assert_array_equal(rollout.next_observations[:-1][ongoing], rollout.observations[1:][ongoing])
    assert not np.array_equal(rollout.next_observations[49], rollout.observations[50])
    assert collector.normaliser.count == 121  # the last observation of an episode only passes through


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
