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


def terms(array, **options):
    policy = DiagGaussian(array(np.zeros((3, 1))), array(np.array([[1.0], [2.0], [4.0]])))
    given = {"log_ratio": np.log(RATIOS), "advantages": ADVANTAGES, "penalties": PENALTIES}
    arrays = {name: array(x) for name, x in given.items()}
    found = trust_region_loss(policy, **arrays, **{"regression_weight": 0.0, **options})
    return [float(x) for x in (found.total, found.surrogate, found.penalty)]


@every_framework
def test_the_sum_and_its_terms(array):
    """With advantages normalised by either deviation."""
    for options, deviation in (({}, math.sqrt(6.0)), ({"unbiased": False}, math.sqrt(6.0)), ({"unbiased": True}, 3.0)):
        own = -(RATIOS * (ADVANTAGES - 2.0) / deviation).mean()
        near = {"rel": 1e-6}
        assert terms(array, **options) == pytest.approx([own, own, 0.3], **near)
        assert terms(array, regression_weight=4.0, **options) == pytest.approx([own + 1.2, own, 0.3], **near)
        bonus = 0.5 * ENTROPIES.mean()
        assert terms(array, entropy_weight=0.5, **options) == pytest.approx([own - bonus, own, 0.3], **near)


@every_framework
def test_advantages_as_they_are(array):
    plain = -(1.0 - 2.0 + 5.0) / 3.0
    assert terms(array, normalise=False) == pytest.approx([plain, plain, 0.3])


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
