"""Heads: what they draw has the distribution they say it has, in NumPy as in JAX."""

import numpy as np
import pytest

from trpl import families
from trpl.errors import ConfigError
from trpl.policies.heads import BernoulliHead, BetaHead, CategoricalHead, GaussianHead, ProductHead, from_json

NUM = 40_000
HEADS = {
    "categorical": CategoricalHead((4,), (0,)),
    "several categoricals": CategoricalHead((2, 3), (0, 0), (2,)),
    "bernoulli": BernoulliHead(3, (3,)),
    "beta": BetaHead(2),
    "hybrid": ProductHead((GaussianHead(2), CategoricalHead((3,), (0,)), CategoricalHead((2, 2), (0, 0), (2,)))),
}


def outputs_of(head):
    rng = np.random.default_rng(3)
    found = {ending.name: rng.normal(size=ending.size).astype(np.float32) for ending in head.layers}
    return found | {name: np.full(size, -0.4, np.float32) for name, size in head.shared.items()}


@pytest.mark.parametrize("name", HEADS)
def test_samples_have_the_entropy_of_their_distribution(name):
    """E[−log p(x)] = H(p): samples from another distribution would not have it."""
    head, rng = HEADS[name], np.random.default_rng(0)
    outputs = {n: np.broadcast_to(x, (NUM, *x.shape)).copy() for n, x in outputs_of(head).items()}
    policy = head.distribution(outputs)
    surprise = -head.log_prob(policy, head.sample(outputs, head.noise(rng, 1, (NUM,))[0]))
    assert np.mean(surprise) == pytest.approx(
        float(families.entropy(policy)[0]), abs=4 * float(np.std(surprise)) / NUM**0.5
    )


@pytest.mark.parametrize("name", HEADS)
def test_nothing_drawn_is_more_likely_than_the_mode(name):
    head, rng, outputs = HEADS[name], np.random.default_rng(1), outputs_of(HEADS[name])
    policy = head.distribution(outputs)
    best = head.log_prob(policy, head.mode(outputs))
    assert all(head.log_prob(policy, head.sample(outputs, noise)) <= best + 1e-5 for noise in head.noise(rng, 200, ()))


def test_impossible_classes_are_never_drawn():
    head, rng = CategoricalHead((3,), (0,)), np.random.default_rng(0)
    logits = np.broadcast_to(np.array([-np.inf, 0.0, -np.inf], np.float32), (1000, 3))
    drawn = head.sample({"logits": logits}, np.append(head.noise(rng, 1, (999,))[0], [[np.float32(1e-7)]], axis=0))
    assert set(drawn.ravel()) == {1.0}


@pytest.mark.parametrize("setting", [{"covariance": "full"}, {"contextual": True}, {"initial_std": 0.5}])
def test_what_describes_a_covariance_means_nothing_without_one(setting):
    given = {"covariance": "diagonal", "contextual": False, "initial_std": 1.0} | setting
    for head in (HEADS["categorical"], HEADS["beta"], ProductHead((HEADS["bernoulli"],))):
        with pytest.raises(ConfigError, match=f"{next(iter(setting))} does not apply to a .* policy"):
            head.shaped(**given)
    assert HEADS["hybrid"].shaped(**given).parts[0] == GaussianHead(2, **given)


@pytest.mark.parametrize(
    "values",
    [
        None,
        {},
        {"kind": "unheard"},
        {"kind": "categorical", "sizes": [2], "starts": [], "shape": None},
        {"kind": "categorical", "sizes": [2, 3], "starts": [0, 0], "shape": None},
        {"kind": "categorical", "sizes": [2.5], "starts": [0], "shape": None},
        {"kind": "bernoulli", "action_size": 3, "shape": [2]},
        {"kind": "gaussian", "action_size": 3, "covariance": "round", "contextual": False, "actions": None},
        {"kind": "beta", "action_size": 0, "actions": None},
        {"kind": "beta", "action_size": 2, "actions": {"gain": [1], "offset": [], "low": None, "high": None}},
        {"kind": "product", "parts": 3, "names": None},
    ],
)
def test_what_describes_no_head_is_refused(values):
    with pytest.raises(ValueError, match=r"head|transformation"):
        from_json(values)
