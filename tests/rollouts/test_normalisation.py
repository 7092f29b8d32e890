import numpy as np
import pytest

from trpl.rollouts import ObservationNormaliser, RewardNormaliser

DATA = np.random.default_rng(0).normal([5.0, -1e3, 0.0], [2.0, 1e-2, 0.0], size=(60, 3))


@pytest.mark.parametrize("batch_size", [1, 4], ids=["one", "batch"])
def test_statistics_are_numpys(batch_size):
    normaliser = ObservationNormaliser(3)
    for start in range(0, 60, batch_size):
        rows = DATA[start : start + batch_size]
        got = normaliser.observe(rows[0] if batch_size == 1 else rows)
        seen = DATA[: start + batch_size]
        expected = (rows - seen.mean(axis=0)) / np.sqrt(seen.var(axis=0) + 1e-8)  # includes the newest
        np.testing.assert_allclose(np.atleast_2d(got), expected, rtol=1e-5, atol=1e-5)
    assert normaliser.count == 60
    np.testing.assert_allclose(normaliser.mean, DATA.mean(axis=0), rtol=1e-12, atol=1e-15)
    np.testing.assert_allclose(normaliser.variance, DATA.var(axis=0), rtol=1e-9, atol=1e-15)
    assert got.dtype == np.float32


def test_a_frozen_normaliser_learns_nothing():
    normaliser = ObservationNormaliser(3)
    for row in DATA:
        normaliser.observe(row)
    before = normaliser.state()
    np.testing.assert_allclose(normaliser(DATA[7]), (DATA[7] - normaliser.mean) / normaliser.scale, rtol=1e-6)
    assert all(np.array_equal(before[name], array) for name, array in normaliser.state().items())


def test_clip_bounds_what_the_policy_sees():
    clipped, free = ObservationNormaliser(1, clip=2.0), ObservationNormaliser(1)
    for value in [0.0] * 30 + [100.0]:
        low, high = clipped.observe(np.array([value])), free.observe(np.array([value]))
    assert low == 2.0
    assert high > 5.0
    assert clipped(np.array([-1e4])) == -2.0


def test_disabled_normalisers_pass_values_through():
    normaliser = ObservationNormaliser(3, enabled=False)
    np.testing.assert_array_equal(normaliser.observe(DATA[0]), DATA[0].astype(np.float32))
    assert normaliser.count == 0
    rewards = DATA[:, :2]
    through = RewardNormaliser(2, discount=0.9, enabled=False)(rewards, np.zeros(rewards.shape, bool))
    np.testing.assert_array_equal(through, rewards.astype(np.float32))


def slow_reward_normalisation(rewards, ended, *, discount, clip):
    """The definition, one step after the other."""
    running, seen, out = np.zeros(rewards.shape[1]), [], np.empty(rewards.shape)
    for t in range(len(rewards)):
        running = discount * running + rewards[t]
        seen.extend(running)
        out[t] = np.clip(rewards[t] / np.sqrt(np.var(seen) + 1e-8), -clip, clip)
        running = np.where(ended[t], 0.0, running)
    return out


@pytest.mark.parametrize("num_envs", [1, 3])
def test_rewards_are_divided_by_the_deviation_of_the_discounted_return(num_envs):
    generator = np.random.default_rng(1)
    rewards = 100.0 + generator.normal(size=(50, num_envs))
    ended = generator.random((50, num_envs)) < 0.1
    normaliser = RewardNormaliser(num_envs, discount=0.9, clip=10.0)
    got = np.concatenate([normaliser(rewards[:20], ended[:20]), normaliser(rewards[20:], ended[20:])])
    np.testing.assert_allclose(got, slow_reward_normalisation(rewards, ended, discount=0.9, clip=10.0), rtol=1e-5)


def test_states_restore_bit_for_bit():
    generator = np.random.default_rng(1)
    first, second = ObservationNormaliser(3), ObservationNormaliser(3)
    for row in DATA[:30]:
        first.observe(row)
    second.restore(first.state())
    assert first.observe(DATA[30]).tobytes() == second.observe(DATA[30]).tobytes()
    rewards, ended = generator.normal(size=(9, 2)), np.zeros((9, 2), bool)
    first, second = RewardNormaliser(2, discount=0.9), RewardNormaliser(2, discount=0.9)
    first(rewards, ended)
    second.restore(first.state())
    assert first(rewards, ended).tobytes() == second(rewards, ended).tobytes()


@pytest.mark.parametrize("centre", [0.0, 1e6])
@pytest.mark.parametrize("number", [1, 2, 5])
def test_what_copies_observed_is_taken_in_as_if_seen_by_one(number, centre):
    generator = np.random.default_rng(number)
    normaliser, seen = ObservationNormaliser(3), []
    for round_ in range(20):
        with normaliser.copies(number) as copies:
            for n, own in enumerate(copies):
                for _ in range(1 if round_ == 0 else 7 + n):
                    seen.append(centre + generator.normal(size=3) * [1.0, 1e-3, 0.0])
                    own.observe(seen[-1])
        assert normaliser.count == len(seen)
        np.testing.assert_allclose(normaliser.mean, np.mean(seen, axis=0), rtol=1e-13, atol=1e-13)
        np.testing.assert_allclose(normaliser.variance, np.var(seen, axis=0), rtol=1e-6, atol=1e-9)


def test_nothing_is_taken_in_from_copies_after_an_error():
    normaliser = ObservationNormaliser(2)
    normaliser.observe(np.ones(2))
    with pytest.raises(ZeroDivisionError), normaliser.copies(2) as copies:  # noqa: PT012
        copies[0].observe(np.zeros(2))
        raise ZeroDivisionError
    assert normaliser.count == 1
