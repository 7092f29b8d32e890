"""How the page of results decides: on numbers that one can check on paper."""

import numpy as np
import pytest
from blocks import ROOT


@pytest.fixture
def claims(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "docs")
    import make_claims

    return make_claims


@pytest.fixture
def decide(claims, monkeypatch):
    """Decide whether a method with these values is above, or like, one with those: the verdict and its line."""
    monkeypatch.setattr(claims, "values_of", lambda runs, measure: np.array(runs, float))
    monkeypatch.setattr(claims, "paper_difference", lambda comparison, runs: "–")

    def decided(first, second, **options):
        comparison = claims.Comparison("table1", "Ant-v4", "kl", "ppo", **options)
        return claims.decided(comparison, {("Ant-v4", "kl"): first, ("Ant-v4", "ppo"): second})

    return decided


def test_above_by_welchs_interval(claims, decide):
    """Means 2 and 0, deviations 1: 2 ± 2.776 · √(2/3)."""
    low = [-1, 0, 1]
    assert decide([1, 2, 3], low).verdict == claims.OPEN
    assert "| 2.00 | -0.27 … 4.27 |" in decide([1, 2, 3], low).line
    assert decide([2, 3, 4], low).verdict == claims.HOLDS
    assert decide(low, [2, 3, 4]).verdict == claims.FAILS


def test_undecided_says_how_many_seeds_it_would_take(decide):
    """(1.960 + 0.842)² · 2/2² + 1.960²/2 = 5.8."""
    assert "about 6 seeds would tell" in decide([1, 2, 3], [-1, 0, 1]).line
    assert "more than 1000 seeds" in decide([-0.99, 0.01, 1.01], [-1, 0, 1]).line


def test_one_seed_decides_nothing(claims, decide):
    assert decide([5], [1, 2, 3]).verdict == claims.MISSING


def test_alike_is_an_interval_within_the_margin(claims, decide):
    around = [0.99, 1.0, 1.01]
    assert decide(around, [1.01, 1.02, 1.03], margin=0.1).verdict == claims.HOLDS
    assert decide(around, [1.49, 1.5, 1.51], margin=0.1).verdict == claims.FAILS
    assert decide(around, [0.8, 1.0, 1.2], margin=0.1).verdict == claims.OPEN
    assert "kl within 0.1 of ppo" in decide(around, around, margin=0.1).line


def test_a_claim_counts_its_comparisons(claims):
    def verdict(*found):
        return claims.verdict_of([claims.Decision(one, "") for one in found])

    assert verdict(claims.HOLDS, claims.HOLDS) == "**holds**"
    assert verdict(claims.HOLDS, claims.OPEN, claims.FAILS, claims.FAILS) == (
        "4 comparisons: 1 holds, 2 do not hold, 1 undecided"
    )


def test_best_is_said_of_every_method_without_entropy_control(claims):
    """Claim (b) was compared with the other projections alone, where PAPI and PPO are above."""
    (best,) = (claim for claim in claims.claims() if claim.letter == "b")
    on_ant = {comparison.second for comparison in best.comparisons if comparison.task == "Ant-v4"}
    assert on_ant == {"w2", "frobenius", "papi", "ppo-m", "ppo"}


class Recorded:
    """A run whose network was this far from the old policy, in units of its bound, in every tenth of its epochs."""

    finished = True

    def __init__(self, *tenths):
        distance = np.repeat(tenths, 3) * 0.03
        self.metrics = type("Columns", (), {"values": {"before_mean": distance, "mean_bound": 0.0 * distance + 0.03}})


def test_distance_and_nearness_to_the_bound(claims):
    """Half of the time 0.5 below and half 0.5 above: as far as the bound on average, and half a bound away from it."""
    from measures import MEASURES as measures

    assert measures[claims.LENGTH](Recorded(0.5, 1.5)) == pytest.approx(1.0)
    assert measures[claims.NEAR](Recorded(0.5, 1.5)) == pytest.approx(-0.5)
    assert measures[claims.NEAR](Recorded(1.0, 1.0)) == pytest.approx(0.0)


def test_held_late_is_decided_by_the_last_fifth(claims):
    import kept

    rising = [Recorded(*np.linspace(0.5, last, 10)) for last in (1.5, 1.51, 1.52)]
    assert kept.held(rising) == kept.LEFT
    falling = [Recorded(*np.linspace(2.5, last, 10)) for last in (0.5, 0.51, 0.52)]
    assert kept.held(falling) == kept.HELD
    assert kept.held([*rising, *falling]) == kept.OPEN
    assert (kept.held(rising[:1]), kept.held([])) == (kept.SINGLE, kept.MISSING)


def test_what_an_evaluation_as_released_cuts(claims):
    """The second environment falls after 700 steps and plays on for 300: from then on its limit comes that early."""
    import switches

    whole = np.array([[1000, 700], [1000, 1000]])
    assert switches.cut_lengths(whole, 1000).tolist() == [[1000, 700], [1000, 700]]
    assert switches.cut_lengths(np.full((5, 5), 1000), 1000).tolist() == [[1000] * 5] * 5


def test_the_replay_cuts_as_much_as_environments_that_are_really_stepped(claims):
    """Where one episode in seven ends early: of unrecorded episodes only the distribution is known, and is enough."""
    import switches

    rng, num_envs, limit = np.random.default_rng(0), 5, 100

    def whole():
        return int(rng.integers(1, limit)) if rng.random() < 1 / 7 else limit

    first = np.array([[whole() for _ in range(num_envs)] for _ in range(1200)])
    counters, stepped = np.zeros(num_envs, int), []
    for row in first:
        left, lengths, done = row.copy(), np.zeros(num_envs, int), np.zeros(num_envs, bool)
        while not done.all():
            counters, left, lengths = counters + 1, left - 1, lengths + ~done
            for n in np.flatnonzero((left == 0) | (counters == limit)):
                done[n], counters[n], left[n] = True, 0, whole()
        stepped.append(lengths)
    replayed = switches.cut_lengths(first, limit)
    assert np.mean(stepped) < 0.8 * first.mean()  # a good part of all steps is cut
    assert replayed.mean() == pytest.approx(np.mean(stepped), rel=0.05)
