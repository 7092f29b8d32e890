import numpy as np
import pytest
from worlds import LinearActor

from trpl.errors import FaultyEnvironmentError
from trpl.rollouts import Collector, Evaluator, ObservationNormaliser, evaluation

PASS = ObservationNormaliser(2, enabled=False)


def test_raw_returns_and_lengths():
    result = Evaluator("test/Terminates-v0", seed=0).evaluate(LinearActor(2, 1), PASS, epoch=1, num_episodes=3)
    np.testing.assert_array_equal(result.returns, [10.0] * 3)
    np.testing.assert_array_equal(result.lengths, [4] * 3)


def test_evaluation_has_no_memory():
    actor, first = LinearActor(11, 3), Evaluator("Hopper-v4", seed=0)
    normaliser = ObservationNormaliser(11, enabled=False)
    once = first.evaluate(actor, normaliser, epoch=4)
    first.evaluate(actor, normaliser, epoch=5)
    again, fresh = (e.evaluate(actor, normaliser, epoch=4) for e in (first, Evaluator("Hopper-v4", seed=0)))
    for result in (again, fresh):
        assert result.returns.tobytes() == once.returns.tobytes()
        assert result.lengths.tobytes() == once.lengths.tobytes()
    assert len(set(once.returns)) == 5  # episodes start apart
    assert not np.array_equal(first.evaluate(actor, normaliser, epoch=5).returns, once.returns)
    assert not np.array_equal(Evaluator("Hopper-v4", seed=1).evaluate(actor, normaliser, epoch=4).returns, once.returns)


@pytest.mark.parametrize("clip", [None, 0.5])
def test_the_mean_acts_on_observations_normalised_with_frozen_statistics(clip):
    collector = Collector("test/Drift-v0", seed=0, observation_clip=clip)
    collector.collect(LinearActor(2, 1), num_steps=30, iteration=0)
    before, seen = collector.normaliser.state(), []

    class Spy:
        def mode(self, observations):
            seen.append(observations)
            return np.zeros(1, np.float32)

    Evaluator("test/Drift-v0", seed=0).evaluate(Spy(), collector.normaliser, epoch=0, num_episodes=1)
    assert all(np.array_equal(before[name], array) for name, array in collector.normaliser.state().items())
    steps = (np.arange(50) - before["mean"][0]) / collector.normaliser.scale[0]
    expected = steps if clip is None else np.clip(steps, -clip, clip)
    np.testing.assert_allclose([row[0] for row in seen], expected, rtol=1e-5, atol=1e-6)
    assert seen[0].dtype == np.float32


def test_an_episode_without_end_is_refused(monkeypatch):
    monkeypatch.setattr(evaluation, "STEP_LIMIT", 50)
    with pytest.raises(FaultyEnvironmentError, match="had not ended after 50 steps"):
        Evaluator("test/Endless-v0", seed=0).evaluate(LinearActor(2, 1), PASS, epoch=0)
