"""Schedules of the entropy target, with numbers one can check on paper."""

import numpy as np
import pytest

from trpl.entropy_schedule import exponential, linear, scheduled


def test_exponential_starts_at_the_initial_entropy_and_decays():
    """κ = −1 for each of 2 dimensions, H₀ = 4, τ = 0.5: β = −2 + 6 · 0.5^(10 i/N)."""
    options = {"initial": 4.0, "target": -1.0, "temperature": 0.5, "dim": 2}
    assert exponential(**options, progress=0.0) == 4.0
    assert exponential(**options, progress=0.1) == pytest.approx(1.0)
    assert exponential(**options, progress=0.2) == pytest.approx(-0.5)
    assert exponential(**options, progress=1.0) == pytest.approx(-2.0 + 6.0 / 1024)


def test_linear_goes_from_one_end_to_the_other():
    options = {"initial": 4.0, "target": -1.0, "dim": 2}
    assert [linear(**options, progress=p) for p in (0.0, 0.5, 1.0)] == [4.0, 1.0, -2.0]


def test_progress_may_be_an_array():
    progress = np.linspace(0, 1, 5)
    values = exponential(initial=3.0, target=0.0, temperature=0.7, progress=progress, dim=6)
    assert values.shape == (5,)
    assert (np.diff(values) < 0).all()


@pytest.mark.parametrize(("name", "temperature"), [("exp", 0.5), ("none", None), ("exponential", None)])
def test_a_schedule_that_does_not_exist_is_refused(name, temperature):
    """Any other name was taken for the exponential schedule."""
    with pytest.raises(ValueError, match="schedule must be 'linear', or 'exponential' with a temperature"):
        scheduled(name, initial=1.0, target=0.0, temperature=temperature, progress=0.1, dim=2)
