"""The loss of a policy epoch, term by term, from numbers worked out on paper."""

import math

import numpy as np
import pytest
import torch

from trpl import DiagGaussian
from trpl.losses import clipped_squared_error, normalised, squared_error, surrogate, trust_region_loss

ADVANTAGES, RATIOS, PENALTIES = np.array([2.0, -1.0, 5.0]), np.array([0.5, 2.0, 1.0]), np.array([0.1, 0.2, 0.6])
ENTROPIES = np.log([1.0, 2.0, 4.0]) + 0.5 * math.log(2.0 * math.pi * math.e)
every_framework = pytest.mark.parametrize("array", [np.asarray, torch.as_tensor], ids=["numpy", "torch"])


@every_framework
def test_the_sum_and_its_terms(array):
    policy = DiagGaussian(array(np.zeros((3, 1))), array(np.array([[1.0], [2.0], [4.0]])))

    def loss(**options):
        found = trust_region_loss(
            policy,
            log_ratio=array(np.log(RATIOS)),
            advantages=array(ADVANTAGES),
            penalties=array(PENALTIES),
            **{"regression_weight": 0.0, "normalise": False, **options},
        )
        return [float(x) for x in (found.total, found.surrogate, found.penalty)]

    plain = -(1.0 - 2.0 + 5.0) / 3.0
    assert loss() == pytest.approx([plain, plain, 0.3])
    assert loss(regression_weight=4.0) == pytest.approx([plain + 1.2, plain, 0.3])
    assert loss(entropy_weight=0.5) == pytest.approx([plain - 0.5 * ENTROPIES.mean(), plain, 0.3])
    for unbiased, deviation in ((False, math.sqrt(6.0)), (True, 3.0)):
        own = -(RATIOS * (ADVANTAGES - 2.0) / deviation).mean()
        assert loss(normalise=True, unbiased=unbiased)[1] == pytest.approx(own, rel=1e-6)
    assert loss(normalise=True) == loss(normalise=True, unbiased=False)


@every_framework
def test_parts_alone(array):
    assert float(surrogate(array(np.log(RATIOS)), array(ADVANTAGES))) == pytest.approx(-4.0 / 3.0)
    found = np.asarray(normalised(array(ADVANTAGES), unbiased=True))
    np.testing.assert_allclose(found, [0.0, -1.0, 1.0], rtol=1e-6, atol=1e-12)
    values, returns = array(np.array([1.0, 4.0, -2.0])), array(np.array([0.0, 5.0, 1.0]))
    assert float(squared_error(values, returns)) == pytest.approx((1.0 + 1.0 + 9.0) / 3.0)
    old = array(np.array([0.5, 1.0, -2.0]))  # held values: 0.7, 1.2, −2
    found = clipped_squared_error(values, returns, old_values=old, clip=0.2)
    assert float(found) == pytest.approx((1.0 + 3.8**2 + 9.0) / 3.0)
