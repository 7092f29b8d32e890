"""The layers' conformance suite through the seams of the adapters."""

import pytest
import torch
from tensordict import TensorDict
from torch.distributions import Independent, MultivariateNormal, Normal, TransformedDistribution
from torch.distributions.transforms import TanhTransform

from cases import CASES, KINDS
from conformance import test_gradients, test_values
from frameworks import TYPES, Torch
from trpl import DiagGaussian
from trpl.integrations.distributions import project, split
from trpl.integrations.torchrl import KEYS, ProjectionModule


def host(p):
    """The Gaussian as PyTorch's own distribution."""
    if isinstance(p, DiagGaussian):
        return Independent(Normal(*p, validate_args=False), 1)
    return MultivariateNormal(p.mean, scale_tril=p.chol, validate_args=False)


class Distributions(Torch):
    name = "distributions"

    def project(self, layer, predicted, old, **options):
        return split(project(layer, host(predicted), host(old), **options)).gaussian


class Squashed(Torch):
    name = "squashed"

    def project(self, layer, predicted, old, **options):
        squashed = [TransformedDistribution(host(p), [TanhTransform()], validate_args=False) for p in (predicted, old)]
        return split(project(layer, *squashed, **options)).gaussian


class TensorDicts(Torch):
    name = "tensordicts"

    def project(self, layer, predicted, old, **options):
        data = TensorDict(dict(zip(KEYS, (*predicted, *old), strict=True)), predicted.batch_shape)
        data = ProjectionModule(layer, **options)(data)
        kind = next(make for make in TYPES.values() if isinstance(predicted, make))
        return kind(data["projected_loc"], data["projected_scale"])


VALUES = [
    test_values.test_inside_the_region_nothing_moves,
    test_values.test_outside_it_lands_on_the_bound_and_the_rest_stays,
]
every_seam = pytest.mark.parametrize("seam", [Distributions(), Squashed(), TensorDicts()], ids=lambda seam: seam.name)
every_case = pytest.mark.parametrize("case", CASES, ids=str)
every_kind = pytest.mark.parametrize("kind", KINDS)


@every_seam
@every_kind
@every_case
@pytest.mark.parametrize("holds", VALUES, ids=lambda f: f.__name__)
def test_values_through_the_seam(holds, case, kind, seam):
    holds(case, kind, seam, "float64")


@every_seam
@every_kind
@every_case
def test_rows_and_repetition_through_the_seam(case, kind, seam):
    test_values.test_twice_is_once(case, kind, seam)
    test_values.test_rows_do_not_mix(case, kind, seam)


@every_seam
@every_kind
@every_case
def test_gradients_through_the_seam(case, kind, seam):
    """Finite differences, to the prediction and to the old policy."""
    arrays, options = test_gradients.inputs(case, seam, test_gradients.gentle_pair(kind, 3, 3, seed=0))
    leaves = [x.clone().requires_grad_() for x in arrays]
    layer, make = case.make(seam, check=False), TYPES[kind]

    def call(mean, scale, old_mean, old_scale):
        scale, old_scale = (test_gradients.lower(kind, x) for x in (scale, old_scale))
        return tuple(seam.project(layer, make(mean, scale), make(old_mean, old_scale), **options))

    assert torch.autograd.gradcheck(call, leaves, rtol=1e-4, atol=1e-6)
