"""The authors' interface against references computed here: SciPy's minimiser and roots, mpmath, closed forms."""

import subprocess
import sys
from types import SimpleNamespace

import mpmath
import numpy as np
import pytest
import scipy.linalg
import scipy.optimize
import torch

from trpl.compat import trust_region_projections as compat
from trpl.entropy_schedule import exponential, linear

FULL = SimpleNamespace(is_diag=False, contextual_std=True)
DIAG = SimpleNamespace(is_diag=True, contextual_std=True)


def policies(seed=0, batch=4, dim=3, *, diag=False):
    """Two policies far apart, as (mean, Cholesky factor) in float64."""
    generator = np.random.default_rng(seed)
    found = []
    for _ in range(2):
        chol = np.tril(0.3 * generator.normal(size=(batch, dim, dim)), -1) * (not diag)
        chol += np.eye(dim) * generator.uniform(0.5, 1.5, size=(batch, 1, dim))
        found.append((torch.tensor(generator.normal(size=(batch, dim))), torch.tensor(chol)))
    return found


def reference_mean(p, q, bound, weight):
    """On the line to the old mean: the share at which weight · Mahalanobis² is the bound."""
    out = []
    for mean, old_mean, old_chol in zip(p[0].numpy(), q[0].numpy(), q[1].numpy(), strict=True):
        shift = scipy.linalg.solve_triangular(old_chol, mean - old_mean, lower=True)
        distance = weight * shift @ shift
        share = min(1.0, np.sqrt(bound / distance))
        out.append(old_mean + share * (mean - old_mean))
    return np.array(out)


def reference_kl_covariance(chol, old_chol, bound):
    """Precisions mixed, Λ = x Λ_p + (1 − x) Λ_q; x by bisection in mpmath with 40 digits."""
    with mpmath.workdps(40):
        precision, old_precision = (mpmath.matrix((c @ c.T).tolist()) ** -1 for c in (chol, old_chol))

        def covariance(x):
            return (x * precision + (1 - x) * old_precision) ** -1

        def part(x):
            product = old_precision * covariance(x)
            trace = mpmath.fsum(product[i, i] for i in range(len(chol)))
            return (trace - len(chol) - mpmath.log(mpmath.det(product))) / 2

        if part(mpmath.mpf(1)) <= bound:
            return chol @ chol.T
        x = mpmath.findroot(lambda x: part(x) - bound, (0, 1), solver="bisect", tol=1e-30, maxsteps=200)
        return np.array(covariance(x).tolist(), dtype=float)


def reference_root(scale, old_scale, bound, norm):
    """A point on the line between two matrices, where a distance that grows with its square is the bound."""
    distance = norm(scale)
    return old_scale + min(1.0, np.sqrt(bound / distance)) * (scale - old_scale)


def products(chol):
    return chol.numpy() @ chol.numpy().swapaxes(-1, -2)


@pytest.mark.parametrize("diag", [False, True])
@pytest.mark.parametrize(("mean_bound", "cov_bound"), [(0.05, 5e-4), (0.03, 1e-3), (0.5, 0.1)])
def test_kl(diag, mean_bound, cov_bound):
    p, q = policies(diag=diag)
    projection = compat.get_projection_layer("kl", mean_bound=mean_bound, cov_bound=cov_bound)
    mean, chol = projection(DIAG if diag else FULL, p, q, 0)
    assert mean.numpy() == pytest.approx(reference_mean(p, q, mean_bound, 0.5), abs=1e-10)
    wanted = [reference_kl_covariance(a, b, cov_bound) for a, b in zip(p[1].numpy(), q[1].numpy(), strict=True)]
    assert products(chol) == pytest.approx(np.array(wanted), abs=1e-9)


def test_kl_is_the_nearest_policy_within_the_bound():
    """By SciPy's constrained minimiser: of all covariances within the bound, the nearest in KL."""
    (_, chol), (_, old) = policies(seed=3, batch=1, dim=2)
    p, q = (torch.zeros(1, 2, dtype=torch.float64), chol), (torch.zeros(1, 2, dtype=torch.float64), old)
    found = products(compat.KLProjectionLayer(mean_bound=1.0, cov_bound=0.01)(FULL, p, q, 0)[1])[0]

    def part(factor, other):
        product = np.linalg.solve(other @ other.T, factor @ factor.T)
        return 0.5 * (np.trace(product) - 2 - np.linalg.slogdet(product)[1])

    def factor(x):
        return np.array([[x[0], 0.0], [x[1], x[2]]])

    start = old[0].numpy()
    best = scipy.optimize.minimize(
        lambda x: part(factor(x), chol[0].numpy()),
        [start[0, 0], start[1, 0], start[1, 1]],
        constraints={"type": "ineq", "fun": lambda x: 0.01 - part(factor(x), start)},
        method="SLSQP",
        options={"ftol": 1e-14, "maxiter": 500},
    )
    assert found == pytest.approx(factor(best.x) @ factor(best.x).T, abs=1e-5)


@pytest.mark.parametrize("bound", [1e-3, 0.05])
def test_frobenius(bound):
    p, q = policies()
    mean, chol = compat.get_projection_layer("frob", mean_bound=0.03, cov_bound=bound)(FULL, p, q, 0)
    wanted = [
        reference_root(cov, old, bound, lambda c, old=old: np.square(c - old).sum())
        for cov, old in zip(products(p[1]), products(q[1]), strict=True)
    ]
    assert mean.numpy() == pytest.approx(reference_mean(p, q, 0.03, 1.0), abs=1e-10)
    assert products(chol) == pytest.approx(np.array(wanted), abs=1e-10)


@pytest.mark.parametrize("bound", [1e-3, 0.05])
def test_wasserstein(bound):
    """Diagonal, where matrices commute: std = old + share · (std − old), the distance Σ (std/old − 1)²."""
    p, q = policies(diag=True)
    mean, chol = compat.get_projection_layer("w2", mean_bound=0.03, cov_bound=bound)(DIAG, p, q, 0)
    std, old = (np.diagonal(x[1].numpy(), axis1=-2, axis2=-1) for x in (p, q))
    distance = np.square(std / old - 1.0).sum(-1, keepdims=True)
    wanted = old + np.minimum(1.0, np.sqrt(bound / distance)) * (std - old)
    assert mean.numpy() == pytest.approx(reference_mean(p, q, 0.03, 1.0), abs=1e-10)
    assert np.diagonal(chol.numpy(), axis1=-2, axis2=-1) == pytest.approx(wanted, abs=1e-10)


def test_full_and_diagonal_agree():
    p, q = policies(diag=True)
    for name in ("kl", "w2", "frob"):
        projection = compat.get_projection_layer(name, mean_bound=0.03, cov_bound=1e-3)
        for a, b in zip(projection(DIAG, p, q, 0), projection(FULL, p, q, 0), strict=True):
            assert a.numpy() == pytest.approx(b.numpy(), abs=1e-10)


def test_a_shared_covariance_is_projected_once():
    p, q = policies(batch=5)
    p, q = ((mean, chol[:1].expand(5, 3, 3)) for mean, chol in (p, q))
    shared = SimpleNamespace(is_diag=False, contextual_std=False)
    chol = compat.KLProjectionLayer(cov_bound=1e-3)(shared, p, q, 0)[1]
    assert chol.shape == (5, 3, 3)
    assert torch.equal(chol[0], chol[4])


def test_kl_details_against_determinants():
    p, q = policies(seed=5)
    mean, cov, shape, volume = compat.gaussian_kl_details(FULL, p, q)
    for i, (a, b) in enumerate(zip(products(p[1]), products(q[1]), strict=True)):
        assert shape[i].item() == pytest.approx(0.5 * (np.trace(np.linalg.solve(b, a)) - 3), abs=1e-10)
        log_dets = np.linalg.slogdet(b)[1] - np.linalg.slogdet(a)[1]
        assert volume[i].item() == pytest.approx(0.5 * log_dets, abs=1e-10)
    assert torch.allclose(cov, shape + volume)
    wanted = torch.distributions.kl_divergence(
        *(torch.distributions.MultivariateNormal(m, scale_tril=c) for m, c in (p, q))
    )
    assert torch.allclose(mean + cov, wanted)


@pytest.mark.parametrize(("name", "function"), [("linear", linear), ("exp", exponential)])
def test_entropy_schedules(name, function):
    p, q = policies()
    words = {"target_entropy": -2.0, "temperature": 0.6, "entropy_eq": True, "total_train_steps": 10}
    projection = compat.get_projection_layer("kl", entropy_schedule=name, **words)
    chol = projection(FULL, p, q, 4)[1]
    start = 1.5 * np.log(2 * np.pi * np.e) + np.log(np.diagonal(q[1].numpy(), axis1=-2, axis2=-1)).sum(-1).mean()
    assert float(projection.initial_entropy) == pytest.approx(start)
    options = {"temperature": 0.6} if name == "exp" else {}
    dim = 3 if name == "exp" else 1  # the authors' linear target is the entropy itself
    wanted = function(initial=start, target=-2.0, progress=0.4, dim=dim, **options)
    found = 1.5 * np.log(2 * np.pi * np.e) + np.log(np.diagonal(chol.numpy(), axis1=-2, axis2=-1)).sum(-1)
    assert found == pytest.approx(np.full(4, wanted), abs=1e-8)


def test_the_loss_pulls_the_prediction_alone():
    p, q = policies()
    p = tuple(x.clone().requires_grad_() for x in p)
    projection = compat.get_projection_layer("kl", trust_region_coeff=3.0)
    projected = projection(FULL, p, q, 0)
    loss = projection.get_trust_region_loss(FULL, p, projected)
    loss.backward()
    mean, cov = compat.gaussian_kl(FULL, tuple(x.detach() for x in p), tuple(x.detach() for x in projected))
    assert loss.item() == pytest.approx(3.0 * (mean + cov).mean().item(), rel=1e-6)
    assert all(torch.isfinite(x.grad).all() for x in p)


class Network(torch.nn.Module):
    is_diag, contextual_std = False, True

    def __init__(self, log_std=0.0):
        super().__init__()
        self.mean = torch.nn.Linear(2, 2).double()
        self.raw = torch.nn.Parameter(torch.full((2,), log_std, dtype=torch.float64))

    def forward(self, obs):
        return self.mean(obs), torch.diag(self.raw.exp()).expand(len(obs), 2, 2)


def test_regression_brings_the_network_into_the_region():
    torch.manual_seed(0)
    obs = torch.randn(32, 2, dtype=torch.float64)
    policy = Network()
    old = torch.zeros(32, 2, dtype=torch.float64), torch.eye(2, dtype=torch.float64).expand(32, 2, 2)
    projection = compat.KLProjectionLayer(mean_bound=0.05, do_regression=True, regression_iters=60, regression_lr=0.01)
    before = projection.trust_region_value(policy, policy(obs), old)[0].mean()
    found = projection.trust_region_regression(policy, obs, old, 2, 0)
    after = projection.trust_region_value(policy, policy(obs), old)[0].mean()
    assert found["regression_loss"] < 0.1
    assert after < 0.5 * before
    assert compat.KLProjectionLayer().trust_region_regression(policy, obs, old, 2, 0) == {}


def test_regression_fits_a_shared_covariance_too():
    torch.manual_seed(0)
    obs = torch.randn(8, 2, dtype=torch.float64)
    policy = Network(log_std=0.2)
    policy.contextual_std = False
    old = torch.zeros(8, 2, dtype=torch.float64), torch.eye(2, dtype=torch.float64).expand(8, 2, 2)
    projection = compat.KLProjectionLayer(do_regression=True, regression_iters=300, regression_lr=0.01)
    goal = projection(policy, policy(obs), old)[1][0, 0, 0].item()
    projection.trust_region_regression(policy, obs, old, 1, 0)
    assert policy.raw.exp().tolist() == pytest.approx([goal, goal], rel=1e-3)


def test_metrics():
    p, q = policies()
    found = compat.KLProjectionLayer().compute_metrics(FULL, p, q)
    assert found["kl"] == pytest.approx(found["constraint"].item())
    assert found["kl_max"] >= found["kl"]


def test_single_precision_is_computed_in_double_where_asked():
    p, q = (tuple(x.float() for x in each) for each in policies())
    assert compat.KLProjectionLayer(dtype=torch.float64)(FULL, p, q, 0)[0].dtype == torch.float64


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: compat.get_projection_layer("papi"), "PAPI is a method"),
        (lambda: compat.get_projection_layer("kl", scale_prec=False), "scale_prec"),
        (lambda: compat.get_projection_layer("kl", bound=1.0, device="cpu"), "arguments of a projection: bound$"),
        (lambda: compat.get_projection_layer("kl", entropy_schedule="cosine"), "must be 'linear', 'exp' or None"),
        (lambda: compat.KLProjectionLayer("w2"), "projects by kl, not 'w2'"),
        (lambda: compat.PAPIProjection(mean_bound=0.1), "PAPI is no layer here"),
        (lambda: compat.BaseProjectionLayer(entropy_schedule="exp", total_train_steps=3), "drop the entropy_schedule"),
    ],
)
def test_what_is_refused(make, words):
    with pytest.raises(ValueError, match=words):
        make()


def test_what_a_policy_must_be():
    p, q = policies()
    with pytest.raises(ValueError, match="Cholesky factor"):
        compat.KLProjectionLayer()(FULL, (p[0], p[1][..., 0]), q, 0)


@pytest.mark.parametrize("layer", [compat.KLProjectionLayer, compat.WassersteinProjectionLayer])
def test_symmetric_roots_of_covariances(layer):
    """A policy that gives symmetric roots gets one back: that of the covariance which factors lead to."""
    p, q = policies()

    def rooted(policy):
        values, vectors = torch.linalg.eigh(policy[1] @ policy[1].mT)
        return policy[0], (vectors * values.sqrt()[..., None, :]) @ vectors.mT

    _, chol = layer(mean_bound=0.05, cov_bound=1e-3)(FULL, p, q, 0)
    _, root = layer(mean_bound=0.05, cov_bound=1e-3)(SimpleNamespace(is_root=True), rooted(p), rooted(q), 0)
    torch.testing.assert_close(root, root.mT)
    torch.testing.assert_close(root @ root, chol @ chol.mT, rtol=1e-9, atol=1e-9)


def test_the_exact_form_is_another_projection():
    p, q = policies()
    exact = compat.WassersteinProjectionLayerNonCommuting(mean_bound=0.05, cov_bound=1e-3)
    mean, cov = exact.trust_region_value(FULL, exact(FULL, p, q, 0), q)
    torch.testing.assert_close(mean, torch.full_like(mean, 0.05))
    torch.testing.assert_close(cov, torch.full_like(cov, 1e-3))
    assert not torch.allclose(
        exact(FULL, p, q, 0)[1], compat.WassersteinProjectionLayer(cov_bound=1e-3)(FULL, p, q, 0)[1]
    )


def test_only_means_are_pulled_where_the_caller_sets_the_variance():
    p, q = policies()
    mean, chol = p[0].clone().requires_grad_(), p[1].clone().requires_grad_()
    projection = compat.KLProjectionLayer(mean_bound=0.05, cov_bound=1e-3, trust_region_coeff=2.0)
    projected = projection(FULL, (mean, chol), q, 0)
    loss = projection.get_trust_region_loss(FULL, (mean, chol), projected, set_variance=True)
    parts = compat.gaussian_kl(FULL, p, tuple(x.detach() for x in projected))
    torch.testing.assert_close(loss, 2.0 * parts[0].mean())
    loss.backward()
    assert mean.grad.abs().max() > 0.0
    assert not chol.grad.any()


@pytest.mark.parametrize(
    "layer", [compat.BaseProjectionLayer, compat.KLProjectionLayer, compat.FrobeniusProjectionLayer]
)
@pytest.mark.parametrize(
    "policy", [FULL, SimpleNamespace(is_diag=False, contextual_std=False)], ids=["states", "shared"]
)
@pytest.mark.parametrize("set_variance", [False, True])
def test_every_parameter_has_a_gradient_of_the_loss_alone(layer, policy, set_variance):
    """BBRL's agent asks for it in its check of balance, also where nothing is pulled: a zero, not none."""
    (p_mean, p_chol), q = policies()
    mean, chol = p_mean.requires_grad_(), p_chol[:1].clone().requires_grad_()
    projection = layer(mean_bound=0.05, cov_bound=1e-3, trust_region_coeff=1.0)
    p, old = (mean, chol.expand(4, 3, 3)), (q[0], q[1][:1].expand(4, 3, 3))
    loss = projection.get_trust_region_loss(policy, p, projection(policy, p, old, 0), set_variance=set_variance)
    loss.backward()
    assert mean.grad is not None
    assert chol.grad is not None
    assert bool(mean.grad.any()) is (layer is not compat.BaseProjectionLayer)
    assert bool(chol.grad.any()) is (layer is not compat.BaseProjectionLayer and not set_variance)


OLD_CODE = """
from trpl.compat import trust_region_projections
trust_region_projections.install()
trust_region_projections.install()
import torch
from trust_region_projections.projections.projection_factory import get_projection_layer
from trust_region_projections.projections.kl_projection_layer import KLProjectionLayer
from trust_region_projections.utils.projection_utils import gaussian_kl_details
import inspect
import trust_region_projections
import trust_region_projections.projections.w2_projection_layer
from trust_region_projections.projections.papi_projection import PAPIProjection
from trust_region_projections.projections.w2_projection_layer_non_com import WassersteinProjectionLayerNonCommuting
assert inspect.getfile(trust_region_projections).endswith(".py")
projection = get_projection_layer(proj_type="kl", mean_bound=0.05, cov_bound=5e-4, trust_region_coeff=1.0,
                                  scale_prec=True, entropy_schedule=None, target_entropy=0.0, temperature=0.7,
                                  entropy_eq=False, entropy_first=False, do_regression=False,
                                  dtype=torch.float32, cpu=True)
assert isinstance(projection, KLProjectionLayer)
p, q = (torch.ones(2, 3), 2 * torch.eye(3).expand(2, 3, 3)), (torch.zeros(2, 3), torch.eye(3).expand(2, 3, 3))
proj = projection(None, p, q, 0)
parts = gaussian_kl_details(None, proj, q)
assert projection.get_trust_region_loss(None, p, proj, set_variance=True) > 0
assert projection.compute_metrics(None, p, q, 1)["entropy_max"] > 0
assert torch.allclose(parts[0], torch.tensor(0.05), rtol=1e-3), parts
assert torch.allclose(parts[1], torch.tensor(5e-4), rtol=1e-3), parts
"""


def test_old_code_runs():
    done = subprocess.run([sys.executable, "-c", OLD_CODE], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
