"""The part that rsl_rl, skrl and rl_games share, without any of them."""

import pytest
import torch
from torch import nn

from trpl import Categorical, DiagGaussian, kl, log_prob
from trpl.integrations.trust_region import SharedDeviation, TrustRegion

NUM, DIM = 7, 3


def pair():
    """A predicted policy far from the old one, both with a standard deviation per state."""
    generator = torch.Generator().manual_seed(0)
    mean, shift = torch.randn(2, NUM, DIM, generator=generator)
    std = torch.rand(2, NUM, DIM, generator=generator) + 0.5
    return DiagGaussian(mean + shift, std[0]), DiagGaussian(mean, std[1])


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"projection": "clip"}, "projection must be one of .*, not 'clip'"),
        ({"entropy_schedule": "cosine"}, "entropy_schedule must be one of"),
        ({"mean_bound": 0.0}, "mean_bound must be positive"),
        ({"cov_bound": "1e-3"}, "cov_bound must be a finite number"),
        ({"regression_weight": -1.0}, "regression_weight must not be negative"),
        ({"projection_kwargs": {"form": "exact"}}, "projection_kwargs do not fit projection 'kl'"),
    ],
)
def test_bad_settings(settings, words):
    with pytest.raises(ValueError, match=words):
        TrustRegion(**settings)


def test_settings_are_taken_from_a_hosts():
    settings = {"mean_bound": 0.1, "learning_rate": 1e-3}
    assert TrustRegion.take(settings) == TrustRegion(mean_bound=0.1)
    assert settings == {"learning_rate": 1e-3}


def test_a_shared_deviation_does_not_go_with_one_bound():
    shared = SharedDeviation(nn.Parameter(torch.ones(DIM)), is_log=False)
    for region in (TrustRegion(projection="kl"), TrustRegion(projection="w2")):
        region.check_shared(shared, instead="")
    joint = TrustRegion(projection="kl-joint")
    joint.check_shared(None, instead="")
    with pytest.raises(ValueError, match=r"kl-joint gives every state .*: do this, or use the projection [^-]* or kl$"):
        joint.check_shared(shared, instead="do this")


def test_other_families_have_one_bound_on_a_kl():
    old = Categorical(torch.zeros(NUM, 4))
    predicted = Categorical(torch.eye(NUM)[:, :4] * 9.0)
    projected = TrustRegion(mean_bound=0.02, cov_bound=0.01).project(predicted, old, {})
    assert kl(projected, old).max() == pytest.approx(0.03, rel=1e-5)
    with pytest.raises(ValueError, match="for Gaussian policies, and this is a Categorical: use 'kl' or 'kl-joint'"):
        TrustRegion(projection="w2").project(predicted, old, {})


def test_the_loss_of_the_projected_policy():
    region, (predicted, old) = TrustRegion(regression_weight=2.0), pair()
    actions, advantages = old.mean + 0.3, torch.linspace(-1.0, 1.0, NUM)
    batch = {"actions": actions, "old_log_prob": log_prob(old, actions), "advantages": advantages}
    terms = region.terms(predicted, old, **batch, constraint={})
    projected = region.layer(predicted, old)
    ratio = (log_prob(projected, actions) - batch["old_log_prob"]).exp()
    wanted = 2.0 * region.layer.penalty(predicted, projected) - ratio * advantages
    torch.testing.assert_close(terms.loss, wanted)
    torch.testing.assert_close(terms.mean().loss, wanted.mean())


@pytest.mark.parametrize("is_log", [False, True], ids=["std", "log std"])
def test_a_shared_deviation_is_set_to_its_projection(is_log):
    region, old = TrustRegion(cov_bound=1e-3), torch.full((DIM,), 0.5)
    parameter = nn.Parameter(torch.full((DIM,), 2.0).log() if is_log else torch.full((DIM,), 2.0))
    SharedDeviation(parameter, is_log=is_log).project_(region, old, {})
    std = parameter.detach().exp() if is_log else parameter.detach()
    mean = torch.zeros(1, DIM)
    assert kl(DiagGaussian(mean, std), DiagGaussian(mean, old)).item() == pytest.approx(1e-3, rel=1e-4)


def test_a_deviation_that_is_not_trained_stays():
    parameter = nn.Parameter(torch.full((DIM,), -1.0), requires_grad=False)
    shared = SharedDeviation(parameter, is_log=False)
    shared.keep_positive(torch.ones(DIM))
    shared.project_(TrustRegion(), torch.ones(DIM), {})
    assert (parameter == -1.0).all()


def test_a_deviation_stays_positive():
    parameter = nn.Parameter(torch.tensor([-1.0, 0.3]))
    SharedDeviation(parameter, is_log=False).keep_positive(torch.ones(2))
    torch.testing.assert_close(parameter.detach(), torch.tensor([0.01, 0.3]))


def test_measurements_are_over_all_minibatches_and_name_the_target():
    predicted, old = pair()
    parts = [slice(0, 4), slice(4, NUM)]
    pairs = [tuple(DiagGaussian(p.mean[rows], p.std[rows]) for p in (predicted, old)) for rows in parts]
    found = TrustRegion().measured(pairs, {"min_entropy": 1.5})
    states = kl(predicted, old)
    assert found["kl"] == pytest.approx(states.mean().item())
    assert found["kl_max"] == pytest.approx(states.max().item())
    assert (found["kl_above"], found["min_entropy_target"]) == (1.0, 1.5)
    assert "kl_above" not in TrustRegion(projection="w2").measured(pairs, {})
