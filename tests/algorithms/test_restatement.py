"""Several updates of every method against updates that share no code with them: float64, to twelve digits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import restated
import restatement
import small
import torch

CASES = [
    ("kl", {"minibatch_size": 20, "regression_weight": 3.0}),  # 48 samples: two whole minibatches and one of eight
    ("w2", {"regression": "full", "regression_epochs": 2}),
    ("frobenius", {"contextual": True, "discount": 0.9, "gae_lambda": 0.7, "gradient_clip": 0.5}),
    ("kl-e", {"entropy_weight": 0.05}),
    ("w2-e", {"entropy_first": True, "entropy_equality": True}),
    ("frobenius-e", {}),
    ("ppo-m", {"entropy_weight": 0.05}),
    ("ppo", {"learning_rate_vf": 0.05}),
    ("papi", {"learning_rate": 3e-2, "bound": 0.05}),
    ("trpo", {"cg_steps": 5}),
]
FULL = [
    ("frobenius", {"whitened": True, "covariance": "full"}),
    ("kl", {"contextual": True, "covariance": "full", "cov_bound": 5e-3}),
    ("w2", {"contextual": True, "covariance": "full", "wasserstein_form": "exact", "gradient_clip": 0.5}),
]
CASES += [pytest.param(*case, marks=pytest.mark.slow) for case in FULL]
TOLERANCE = 1e-12


@pytest.fixture(autouse=True)
def _compiled_plainly():
    """Without XLA's optimisations, which cost more here than they gain; rounding is all that they change."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


def settings_of(method, overrides):
    epochs = {} if method == "trpo" else {"policy_epochs": 4, "learning_rate": 1e-2}
    return small.config(method, **({"value_epochs": 3} | epochs | overrides))


def in_64_bits(tree):
    def widened(x):
        x = np.asarray(x)
        return x.astype(np.float64) if x.dtype == np.float32 else x.astype(np.int64) if x.dtype == np.int32 else x

    return jax.tree.map(widened, tree)


def start_of(settings):
    """A state in 64 bits.

    Where the entropy is held, training is one update old and the schedule above the policy's entropy: at the very start
    they are equal, and rounding decides on which side of a kink the gradient is taken. PAPI's has fallen so far that it
    is bounded.
    """
    state = in_64_bits(jax.device_get(small.init(settings)))
    learner = getattr(state, "learner", state)
    nowhere = torch.zeros(1, small.OBS, dtype=torch.float64)
    entropy = float(restatement.policy_of(restatement.tensors(learner.policy), nowhere).detach().entropy().mean())
    before = {"papi": entropy + 2.0}.get(settings.method, 2 * (entropy + 0.05))
    if settings.method == "papi" or settings.get("entropy_schedule") not in (None, "none"):
        learner = learner._replace(initial_entropy=np.asarray(before), epoch=np.asarray(1))
    return state._replace(learner=learner) if hasattr(state, "learner") else learner


def trained(settings, start, updates):
    """Weights after some updates by the trainer, in float64."""
    with jax.enable_x64(True):
        state, algorithm = jax.tree.map(jnp.asarray, start), small.algorithm(settings)
        for i in range(updates):
            state, _ = algorithm.update(state, in_64_bits(small.batch(i)), np.random.default_rng([0, i]))
        state = jax.device_get(getattr(state, "learner", state))
        return state.policy, state.value


def again(settings, start, updates):
    """The same by the restatement."""
    state = getattr(start, "learner", start)
    begun = {"epoch": 1, "initial_entropy": float(state.initial_entropy)} if state.epoch else {}
    learner = restated.learner(settings, state.policy, state.value, **begun)
    for i in range(updates):
        learner.update(in_64_bits(small.batch(i)), np.random.default_rng([0, i]))
    return learner.weights()


def difference(found, wanted):
    """The largest difference of a weight, in units of the largest weight of its array."""
    return max(
        np.abs(a[name] - b[name]).max() / np.abs(b[name]).max()
        for a, b in zip(found, wanted, strict=True)
        for name in b
    )


@pytest.mark.parametrize(("method", "overrides"), CASES, ids=str)
def test_update_equals_an_independent_one_to_twelve_digits(method, overrides):
    settings = settings_of(method, overrides)
    start = start_of(settings)
    found = trained(settings, start, updates=3)
    assert all(weight.dtype == np.float64 for part in found for weight in part.values())
    assert difference(found, again(settings, start, updates=3)) < TOLERANCE


def test_a_trainer_with_a_thousandth_more_of_alpha_fails():
    settings = settings_of("kl", {"learning_rate": 5e-2})
    start = start_of(settings)
    found = trained(settings.replace(regression_weight=1.001 * settings.regression_weight), start, updates=1)
    assert difference(found, again(settings, start, updates=1)) > 1e4 * TOLERANCE


@pytest.mark.parametrize(
    ("method", "setting"),
    [
        *((method, "regression_weight") for method in ("kl", "w2", "frobenius")),
        *(("w2", "mean_bound"), ("frobenius", "cov_bound"), ("ppo", "gae_lambda")),
    ],
)
def test_a_thousandth_more_of_a_number_would_be_noticed(method, setting):
    """One update is enough; what the trainer computes is what the restatement does, so the restatement tells."""
    settings = settings_of(method, {"learning_rate": 5e-2})
    changed = settings.replace(**{setting: 1.001 * getattr(settings, setting)})
    start = start_of(settings)
    assert difference(again(changed, start, updates=1), again(settings, start, updates=1)) > 1e4 * TOLERANCE
