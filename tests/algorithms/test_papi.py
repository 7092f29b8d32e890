"""PAPI: the bound on the expected KL, the roll-back, the head's interpolation, the schedule of the entropy bound."""

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from trpl.algorithms import Batch, make_algorithm, papi
from trpl.algorithms import head_projection as heads
from trpl.algorithms.learner import Learner, LearnerState, Samples
from trpl.gaussians import DiagGaussian, FullGaussian, entropy, kl_parts, log_prob
from trpl.losses import normalised, surrogate
from trpl.policies.heads import GaussianHead
from trpl.policies.networks import PolicyNetwork
from trpl.presets import preset

OBS, ACT, STEPS = 5, 3, 64
TINY = {
    "rollout_size": STEPS,
    "total_steps": 10 * STEPS,
    "minibatch_size": 16,
    "policy_epochs": 6,
    "value_epochs": 2,
    "hidden_sizes": (8,),
    "hidden_sizes_vf": (8,),
}
TIGHT = {"bound": 1e-9, "learning_rate": 1e-2, "learning_rate_vf": 1e-3}  # nothing fits
HELD = {"bound": 0.003, "learning_rate": 5e-3}  # PPO would go further
LOOSE = {"bound": 1e3}


def random_batch(seed=0, num_steps=STEPS):
    rng = np.random.default_rng(seed)
    return Batch(
        observations=rng.normal(size=(num_steps, 1, OBS)).astype(np.float32),
        next_observations=rng.normal(size=(num_steps, 1, OBS)).astype(np.float32),
        actions=rng.normal(size=(num_steps, 1, ACT)).astype(np.float32),
        rewards=rng.normal(size=(num_steps, 1)).astype(np.float32),
        terminated=rng.random((num_steps, 1)) < 0.1,
        truncated=np.zeros((num_steps, 1), bool),
    )


@cache
def algorithm_of(method, **changes):
    return make_algorithm(preset(method, "HalfCheetah-v4", **TINY | changes), obs_size=OBS, head=GaussianHead(ACT))


def trained(method, *, updates=1, **changes):
    """State before and after `updates` epochs on random data, and the metrics of each."""
    algorithm = algorithm_of(method, **changes)
    states, metrics = [jax.jit(algorithm.init)(jax.random.key(0))], []
    for seed in range(updates):
        state = jax.tree.map(jnp.array, states[-1])  # an update consumes the state it is given
        state, found = algorithm.update(state, random_batch(seed), np.random.default_rng(seed))
        states.append(state)
        metrics.append({name: float(value) for name, value in found.items()})
    return algorithm, states, metrics


project, expected_kl, project_once = map(jax.jit, (heads.project, heads.expected_kl, heads.project_once))


def random_case(seed, *, covariance="diagonal", spread=1.0):
    """A region around some q for the intermediate policy's features, and a candidate some way off."""
    rng = np.random.default_rng(seed)
    policy = PolicyNetwork(obs_size=OBS, head=GaussianHead(ACT, covariance), hidden_sizes=(8,))
    shapes = jax.eval_shape(policy.init, jax.random.key(0))
    old_weights = {name: (0.3 * rng.normal(size=w.shape)).astype(np.float32) for name, w in shapes.items()}
    weights = {name: w + (0.05 * rng.normal(size=w.shape)).astype(np.float32) for name, w in old_weights.items()}
    observations = rng.normal(size=(STEPS, OBS)).astype(np.float32)
    way = (0.3 * spread * rng.normal(size=(9, ACT))).astype(np.float32)
    raw = (spread * rng.normal(size=policy.head.shared[policy.head.spread])).astype(np.float32)
    return build_case(policy, old_weights, weights, observations, way, raw)


@partial(jax.jit, static_argnums=0)
def build_case(policy, old_weights, weights, observations, way, raw):
    old = policy(old_weights, observations)
    region, features = papi.region_of(weights, Samples(observations, None, None, None, None, old, None))
    return (
        region,
        features,
        heads.Candidate(region.head + way, policy.head.distribution({"mean": old.mean[:1], policy.head.spread: raw})),
    )


@jax.jit
def measured_kl(candidate, region, features):
    """State by state, from the definition."""
    divergence = kl_parts(type(region.old)(features @ candidate.head, candidate.shape.scale), region.old)
    return (divergence.mean + divergence.cov).mean()


@pytest.mark.parametrize("covariance", ["diagonal", "full"])
@pytest.mark.parametrize("seed", range(8))
def test_expected_kl_is_the_mean_over_states(seed, covariance):
    region, features, candidate = random_case(seed, covariance=covariance)
    np.testing.assert_allclose(
        expected_kl(candidate, region), measured_kl(candidate, region, features), rtol=1e-4, atol=1e-6
    )


@pytest.mark.parametrize("covariance", ["diagonal", "full"])
@pytest.mark.parametrize("entropy_gap", [None, 0.01], ids=["free", "entropy bound"])
@pytest.mark.parametrize("spread", [0.2, 3.0])
def test_the_projection_never_exceeds_the_bound(covariance, entropy_gap, spread):
    moved = 0
    for seed in range(12):
        region, features, candidate = random_case(seed, covariance=covariance, spread=spread)
        bound = float(region.mean_part) + 0.02  # the intermediate policy's mean is within it
        least = -jnp.inf if entropy_gap is None else entropy(region.old) - entropy_gap
        limits = heads.Limits(bound * (1 - papi.ROUNDING), jnp.asarray(least))
        projected, num_rounds = project(candidate, region, limits)
        assert measured_kl(projected, region, features) <= bound
        assert entropy(projected.shape) >= least - 1e-4
        assert num_rounds <= 2
        moved += int(num_rounds > 0)
    assert moved > 6


def test_inside_the_limits_nothing_moves():
    region, _, candidate = random_case(0)
    projected, num_rounds = project(candidate, region, heads.Limits(1e3, jnp.asarray(-1e3)))
    assert num_rounds == 0
    np.testing.assert_array_equal(projected.head, candidate.head)
    np.testing.assert_array_equal(projected.shape.scale, candidate.shape.scale)


def test_the_interpolated_head_gives_the_interpolated_means():
    region, features, candidate = random_case(1)
    candidate = heads.Candidate(candidate.head, candidate.shape.with_scale(region.old.std))
    bound = float(region.mean_part) + 0.01
    projected = project_once(candidate, region, heads.Limits(bound, jnp.asarray(-jnp.inf)))
    way = candidate.head - region.head
    share = jnp.vdot(projected.head - region.head, way) / jnp.vdot(way, way)
    assert 0.0 < share < 1.0
    np.testing.assert_allclose(
        features @ projected.head,
        (1 - share) * (features @ region.head) + share * (features @ candidate.head),
        rtol=1e-4,
        atol=1e-6,
    )
    np.testing.assert_allclose(
        measured_kl(projected, region, features), bound, rtol=1e-4
    )  # the larger root: on the bound


def test_covariance_share_by_hand():
    """q = N(0, 1), candidate N(0, 4): r + e = ½·3 − ½ log 4 = 0.8069; ε = 0.1 leaves η = 0.1239 of the way to 4."""
    old = DiagGaussian(jnp.zeros((2, 1)), jnp.ones(1))
    region = heads.Region(old, jnp.zeros((2, 1)), jnp.eye(2), jnp.zeros((2, 1)), jnp.zeros(()))
    candidate = heads.Candidate(jnp.zeros((2, 1)), DiagGaussian(jnp.zeros((1, 1)), jnp.array([2.0])))
    projected = project_once(candidate, region, heads.Limits(0.1, jnp.asarray(-jnp.inf)))
    assert projected.shape.std[0] ** 2 == pytest.approx(1 + 0.12394 * 3, rel=1e-4)


def test_covariance_share_where_the_candidates_mean_is_nearer_than_the_intermediates():
    """m′ = 0.05, m = 0.05 − 0.1 + 0.05 = 0: the covariance may use up all of ε = 0.1, as above."""
    old, way = DiagGaussian(jnp.zeros((2, 1)), jnp.ones(1)), 0.1**0.5
    region = heads.Region(old, jnp.zeros((2, 1)), jnp.eye(2), jnp.array([[-way], [0.0]]), jnp.asarray(0.05))
    candidate = heads.Candidate(jnp.array([[way], [0.0]]), DiagGaussian(jnp.zeros((1, 1)), jnp.array([2.0])))
    projected = project_once(candidate, region, heads.Limits(0.1, jnp.asarray(-jnp.inf)))
    assert projected.shape.std[0] ** 2 == pytest.approx(1 + 0.12394 * 3, rel=1e-4)
    np.testing.assert_array_equal(projected.head, candidate.head)


def test_the_entropy_bound_lifts_the_covariance():
    old = FullGaussian(jnp.zeros((2, 2)), jnp.eye(2))
    region = heads.Region(old, jnp.zeros((2, 2)), jnp.eye(2), jnp.zeros((2, 2)), jnp.zeros(()))
    narrow = heads.Candidate(jnp.zeros((2, 2)), FullGaussian(jnp.zeros((1, 2)), 0.9 * jnp.eye(2)))
    projected, _ = project(narrow, region, heads.Limits(0.5, entropy(old) - 0.1))
    assert entropy(projected.shape) == pytest.approx(float(entropy(old)) - 0.1, abs=1e-5)


def test_entropy_is_bounded_after_a_fall_whatever_its_sign():
    def least(std, initial_std):
        old, start = (DiagGaussian(jnp.zeros((1, 2)), jnp.full(2, s)) for s in (std, initial_std))
        return papi.minimum_entropy(old, initial_entropy=entropy(start), bound=0.02) - entropy(old)

    for initial in (1.0, 0.01):  # entropies above and below 0
        assert least(0.51 * initial, initial) == -jnp.inf
        assert least(0.49 * initial, initial) == pytest.approx(-0.02, abs=1e-6)


def test_roll_back_restores_weights_and_optimiser():
    stacked = papi.Snapshots({"w": jnp.arange(6.0)}, {"m": 10 + jnp.arange(6.0)}, None)
    before = LearnerState({"w": jnp.array(-1.0)}, {"m": jnp.array(-2.0)}, {}, None, jnp.zeros(()), jnp.zeros(()))
    for kl, weight, moment, rejected, cut in [
        ([0.1] * 6, 5.0, 15.0, 0, 1.0),
        ([0.1, 0.1, 0.1, 0.3, 0.3, 0.3], 2.0, 12.0, 3, 1.0),
        ([0.1, 0.1, 0.3, 0.1, 0.1, 0.3], 4.0, 14.0, 1, 1.0),  # the newest that fits, not the last before the first miss
        ([0.1, 0.1, 0.3, 0.3, 0.3, 0.3], 1.0, 11.0, 4, 0.8),
        ([0.3] * 6, -1.0, -2.0, 6, 0.8),  # back to q
    ]:
        state, num_rejected = papi.roll_back(before, stacked._replace(kl=jnp.array(kl)), limit=0.2)
        assert (state.policy["w"], state.policy_optimiser["m"], num_rejected) == (weight, moment, rejected)
        assert papi.learning_rate_cut(num_rejected) == pytest.approx(cut)


def test_with_a_large_bound_papi_is_ppo():
    _, papi_states, _ = trained("papi", updates=2, **LOOSE)
    _, ppo_states, _ = trained("ppo", updates=2, learning_rate_decay=False)
    papi_state = papi_states[-1]._replace(learning_rate_factor=None)
    for a, b in zip(*map(jax.tree.leaves, (papi_state, ppo_states[-1])), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("method", "covariance"), [("papi", "diagonal"), ("papi-gradient", "diagonal"), ("papi-gradient", "full")]
)
def test_updates_stay_within_the_bound(method, covariance):
    _, _, metrics = trained(method, updates=6, covariance=covariance, **HELD)
    assert max(found["ppo_kl"] for found in metrics) > 0.003  # there was something to hold back
    assert max(found["kl"] for found in metrics) <= 0.003
    assert min(found["kl"] for found in metrics) > 0.0


def test_nothing_fits_and_the_policy_stays():
    _, states, metrics = trained("papi", **TIGHT)
    assert metrics[0]["rejected_snapshots"] == TINY["policy_epochs"]
    for name in ("policy", "policy_optimiser"):
        before, after = (jax.tree.leaves(getattr(state, name)) for state in states)
        assert all(np.array_equal(a, b) for a, b in zip(before, after, strict=True))


def test_learning_rates_fall_after_many_rejections_only():
    _, _, metrics = trained("papi", updates=3, **TIGHT)
    np.testing.assert_allclose([found["learning_rate"] for found in metrics], [1e-2, 8e-3, 6.4e-3], rtol=1e-6)
    np.testing.assert_allclose([found["learning_rate_vf"] for found in metrics], [1e-3, 8e-4, 6.4e-4], rtol=1e-6)
    _, _, metrics = trained("papi", updates=3, **LOOSE)
    assert {found["learning_rate"] for found in metrics} == {np.float32(3e-4)}


def test_an_entropy_that_has_fallen_is_held():
    algorithm, states, _ = trained("papi", covariance="diagonal", **HELD)
    fallen = states[-1]._replace(initial_entropy=states[-1].initial_entropy + 3.0)
    start = float(entropy(algorithm.policy(fallen.policy, jnp.zeros((1, OBS)))))
    _, metrics = algorithm.update(fallen, random_batch(7), np.random.default_rng(7))
    assert metrics["entropy_bounded"]
    assert metrics["entropy"] >= start - 0.003 - 1e-4


def test_gradient_steps_improve_what_roll_back_left():
    """On the same data: through the projection the surrogate gets better, still within the bound."""
    config = preset("papi", "HalfCheetah-v4", **TINY | HELD)
    networks = Learner.of(config, obs_size=OBS, head=GaussianHead(ACT))

    @jax.jit
    def loss(state, start):
        samples = networks.samples(start, random_batch(0))
        policy = networks.policy(state.policy, samples.observations)
        return surrogate(log_prob(policy, samples.actions) - samples.old_log_prob, normalised(samples.advantages))

    losses = {}
    for method in ("papi", "papi-gradient"):
        _, (start, end), _ = trained(method, covariance="diagonal", **HELD)
        losses[method] = loss(end, start)
    assert losses["papi-gradient"] < losses["papi"] < 0.0


def test_gradients_through_the_projection():
    with jax.enable_x64(True):
        region, _, candidate = jax.tree.map(lambda x: jnp.asarray(x, jnp.float64), random_case(3))
        limits = heads.Limits(float(region.mean_part) + 0.02, entropy(region.old) - 0.01)

        @jax.jit
        def projected(head, scale):
            found = heads.project_once(heads.Candidate(head, candidate.shape.with_scale(scale)), region, limits)
            return found.head, found.shape.scale

        check_grads(projected, (candidate.head, candidate.shape.scale), order=1, modes=["rev"])
        inside = region.head, region.old.scale  # where nothing moves the gradient is the identity
        jacobian = jax.jacobian(lambda *c: projected(*c)[0], argnums=0)(*inside)
        np.testing.assert_allclose(jacobian.reshape(region.head.size, -1), np.eye(region.head.size), atol=1e-12)
