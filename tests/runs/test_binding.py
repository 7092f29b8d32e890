"""A word when the region hardly ever, or always, binds."""

import pytest

from trpl.runs.binding import WINDOW, Binding


def said(shares, **more):
    binding = Binding()
    metrics = [{"projected_mean_share": s, "mean_bound": 0.03, "projected_cov_share": None, **more} for s in shares]
    return [word for line in metrics if (word := binding.advice(line))]


@pytest.mark.parametrize(("share", "words"), [(0.0, "hardly ever binds; a smaller mean_bound"), (1.0, "always binds")])
def test_it_is_said_once_and_after_a_while(share, words):
    assert said([share] * (WINDOW - 1)) == []
    (word,) = said([share] * 5 * WINDOW)
    assert words in word


def test_in_between_nothing_is_said():
    assert said([0.5] * 100) == []
    assert said([0.0, 1.0] * 50) == []


def test_without_a_region_nothing_is_said():
    assert said([0.0] * 100, mean_bound=None) == []


def test_one_bound_for_the_whole_kl():
    """As `kl-joint` has, and `kl` with a policy that is not Gaussian."""
    (word,) = said([0.0] * 2 * WINDOW, mean_bound=None, bound=0.05, projected_cov_share=0.0, cov_bound=None)
    assert "the policy was projected in 0% of states: the region hardly ever binds; a smaller bound or" in word


def test_both_parts():
    (word,) = said([0.0] * WINDOW, projected_cov_share=1.0, cov_bound=1e-3)
    assert "the mean was projected in 0% of states" in word
    assert "the covariance was projected in 100% of states: the region always binds; a larger cov_bound" in word
