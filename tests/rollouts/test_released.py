"""What the authors' release computes differently, switched on."""

import numpy as np
import pytest
import worlds

from trpl.rollouts import Environment, Evaluator, ObservationNormaliser, RewardNormaliser, generalised_advantages
from trpl.rollouts.evaluation import run_episode


def released_variance(values):
    """var_n = var_{n−1} + (x_n − mean_{n−1})²/n, from the recurrence in words."""
    mean, variance, found = values[0], np.zeros_like(values[0]), [np.zeros_like(values[0])]
    for n, value in enumerate(values[1:], start=2):
        variance = variance + (value - mean) ** 2 / n
        mean = mean + (value - mean) / n
        found.append(variance)
    return np.array(found)


def test_variance_of_single_observations():
    observations = np.random.default_rng(0).normal(3.0, 2.0, (500, 4))
    normaliser = ObservationNormaliser(4, released=True)
    for observation, variance in zip(observations, released_variance(observations), strict=True):
        normaliser.observe(observation)
        np.testing.assert_allclose(normaliser.variance, variance, rtol=1e-10, atol=1e-14)
    np.testing.assert_allclose(normaliser.mean, observations.mean(0), rtol=1e-12)


def test_deviation_is_too_large_by_the_factor_seen_in_the_release():
    """2.5–3.0 after 2048 steps: √(ln n + 0.577 − …) for independent values of one distribution."""
    observations = np.random.default_rng(1).normal(size=(2048, 50))
    exact, released = ObservationNormaliser(50), ObservationNormaliser(50, released=True)
    for observation in observations:
        exact.observe(observation), released.observe(observation)
    assert 2.5 < np.mean(released.scale / exact.scale) < 3.0


def test_variance_of_batches():
    """M2 = var·n + batch variance·m + δ²·n·m/(n + m), var = M2/(n + m − 1); the first batch's own variance."""
    batches = np.random.default_rng(2).normal(1.0, 3.0, (5, 8, 3))
    normaliser = ObservationNormaliser(3, released=True)
    mean, variance, count = batches[0].mean(0), batches[0].var(0), 8
    normaliser.observe(batches[0])
    for batch in batches[1:]:
        shift, total = batch.mean(0) - mean, count + 8
        squares = variance * count + batch.var(0) * 8 + shift**2 * count * 8 / total
        mean, variance, count = mean + shift * 8 / total, squares / (total - 1), total
        normaliser.observe(batch)
        np.testing.assert_allclose(normaliser.variance, variance, rtol=1e-12)


def test_variance_of_discounted_returns():
    rewards = np.random.default_rng(3).normal(1.0, 1.0, (300, 1))
    ended = np.zeros_like(rewards, bool)
    ended[99] = True
    discounted, running = [], 0.0
    for reward, end in zip(rewards[:, 0], ended[:, 0], strict=True):
        running = 0.9 * running + reward
        discounted.append(running)
        running = 0.0 if end else running
    expected = rewards[:, 0] / np.sqrt(released_variance(np.array(discounted)) + 1e-8)
    normaliser = RewardNormaliser(1, discount=0.9, released=True)
    parts = [normaliser(rewards[:120], ended[:120]), normaliser(rewards[120:], ended[120:])]
    np.testing.assert_allclose(np.concatenate(parts)[1:, 0], expected[1:], rtol=1e-5)


def test_time_limits_have_advantage_zero_and_the_episode_before_sees_nothing_beyond():
    rewards, values, next_values = np.random.default_rng(4).normal(size=(3, 6, 1)).astype(np.float32)
    truncated = np.array([0, 0, 1, 0, 0, 0], bool)[:, None]
    terminated = np.zeros_like(truncated)
    found = generalised_advantages(
        rewards, values, next_values, terminated=terminated, truncated=truncated, discount=0.9, gae_lambda=0.8,
        released_time_limits=True,
    )  # fmt: skip
    residuals = rewards + 0.9 * next_values - values
    assert found[2, 0] == 0.0
    np.testing.assert_allclose(found[1, 0], residuals[1, 0], rtol=1e-6)
    np.testing.assert_allclose(found[0, 0], residuals[0, 0] + 0.72 * residuals[1, 0], rtol=1e-5)
    np.testing.assert_allclose(found[5, 0], residuals[5, 0], rtol=1e-6)


class Falls:
    """An actor for `test/Falls-v0`; its action does not matter."""

    def mode(self, observation):
        return np.zeros(1, np.float32)


@pytest.fixture
def evaluator():
    worlds.register()
    return Evaluator("test/Falls-v0", seed=5, released=True)


def side_by_side(seed, *, num_epochs, num_envs=3, time_limit=20):
    """Lengths of test episodes in the release's way: all stepped side by side until each has ended once."""
    counters, found = np.zeros(num_envs, int), []
    for epoch in range(1, num_epochs + 1):
        number = list(range(num_envs))
        left = [worlds.falls_after(seed, epoch, n) for n in number]  # steps until each falls
        lengths, done = np.zeros(num_envs, int), np.zeros(num_envs, bool)
        while not done.all():
            for n in range(num_envs):
                counters[n] += 1
                left[n] -= 1
                lengths[n] += not done[n]
                if left[n] == 0 or counters[n] == time_limit:
                    done[n], counters[n] = True, 0
                    number[n] += num_envs
                    left[n] = worlds.falls_after(seed, epoch, number[n])
        found.append(lengths.tolist())
    return found


def test_evaluation_carries_the_count_of_steps_over(evaluator):
    """Against environments that are really stepped side by side with a counter that evaluations do not reset."""
    normaliser = ObservationNormaliser(2, enabled=False)
    found = [
        evaluator.evaluate(Falls(), normaliser, epoch=epoch, num_episodes=3).lengths.tolist() for epoch in range(1, 30)
    ]
    assert found == side_by_side(5, num_epochs=29)
    whole = Evaluator("test/Falls-v0", seed=5)
    uncut = [
        whole.evaluate(Falls(), normaliser, epoch=epoch, num_episodes=3).lengths.tolist() for epoch in range(1, 30)
    ]
    assert found[0] == uncut[0]
    assert np.all(np.array(found) <= np.array(uncut))
    assert np.mean(found) < 0.97 * np.mean(uncut)


def test_what_evaluation_carries_over_survives_a_restart(evaluator):
    normaliser = ObservationNormaliser(2, enabled=False)
    for epoch in range(1, 6):
        evaluator.evaluate(Falls(), normaliser, epoch=epoch, num_episodes=3)
    other = Evaluator("test/Falls-v0", seed=5, released=True)
    other.restore(evaluator.state())
    a, b = (e.evaluate(Falls(), normaliser, epoch=6, num_episodes=3).lengths.tolist() for e in (evaluator, other))
    assert a == b


def test_an_episode_can_be_cut():
    worlds.register()
    environment = Environment("test/Endless-v0", seed=0)
    episode = run_episode(environment, Falls(), ObservationNormaliser(2, enabled=False), seed=0, limit=7)
    assert (episode.length, episode.ended) == (7, False)
