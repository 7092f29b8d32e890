"""The layers' conformance suite through the updates of hosts: from a configuration to the gradient of the host's loss.

Of these hosts the development environment has Stable-Baselines3; `make hosts` runs this file with each.
"""

from importlib.util import find_spec

import pytest
import torch
from host_seams import HOSTS
from numpy.testing import assert_allclose

from cases import CASES, policies, run
from conformance import test_values
from frameworks import Torch
from generators import gentle_pair
from trpl import log_prob

pytestmark = pytest.mark.filterwarnings("ignore:.*:DeprecationWarning", "ignore:.*:FutureWarning")
INSTALLED = [host for host in HOSTS if find_spec(host.name) is not None]
if not INSTALLED:
    pytest.skip("none of the hosts is installed; `make hosts` brings each of them", allow_module_level=True)
every_host = pytest.mark.parametrize("host", INSTALLED, ids=lambda host: host.name)
every_case = pytest.mark.parametrize("case", [case for case in CASES if case.entropy is None], ids=str)
VALUES = [
    test_values.test_inside_the_region_nothing_moves,
    test_values.test_outside_it_lands_on_the_bound_and_the_rest_stays,
]


@every_host
@every_case
@pytest.mark.parametrize("holds", VALUES, ids=lambda f: f.__name__)
def test_values_through_a_host(holds, case, host):
    holds(case, "diag", host, "float32")


@every_host
@every_case
def test_a_host_projects_as_the_layer_does(case, host):
    pair = gentle_pair("diag")
    found, wanted = run(case, host, pair, "float32"), run(case, Torch(), pair, "float32")
    assert_allclose(found.mean, wanted.mean, rtol=2e-4, atol=2e-5)
    assert_allclose(found.scale, wanted.scale, rtol=2e-4, atol=2e-5)


@every_host
@every_case
def test_gradients_through_a_host(case, host):
    """What reaches the network is the gradient of −mean(ratio of the projected policy · A) + α · mean(penalty)."""
    pair = gentle_pair("diag")
    seen = host.update(case.make(host) | {"regression_weight": 3.0}, *policies(host, pair))
    predicted, old = policies(Torch(), pair)
    leaves = [x.requires_grad_() for x in predicted]
    layer = case.make(Torch(), check=False)
    projected = layer(predicted, old)
    actions, old_log_prob, advantages = (torch.tensor(x, dtype=torch.float64) for x in seen[3:6])
    gain = (log_prob(projected, actions) - old_log_prob).exp() * advantages
    loss = 3.0 * layer.penalty(predicted, projected).mean() - gain.mean()
    for found, wanted in zip(seen.gradient, torch.autograd.grad(loss, leaves), strict=True):
        assert_allclose(found, wanted, rtol=2e-3, atol=1e-5)
