"""The compiled fit against a plain loop."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from trpl.algorithms.minibatches import adam, draw_orders, fit


def quadratic(weights, minibatch):
    x, y = minibatch
    error = jnp.square(x @ weights["w"] + weights["b"] - y).mean()
    return error, {"error": error}


def problem(size=23):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(size, 3)).astype(np.float32)
    y = x @ np.array([1.0, 2.0, 3.0], np.float32) + 1
    return {"w": jnp.zeros(3), "b": jnp.zeros(())}, (jnp.asarray(x), jnp.asarray(y))


def run(weights, data, orders, *, size, clip=None):
    optimiser = adam(clip)
    return fit(
        quadratic,
        weights,
        optimiser.init(weights),
        data=data,
        orders=orders,
        minibatch_size=size,
        optimiser=optimiser,
        learning_rate=0.1,
    )


@pytest.mark.parametrize("size", [23, 7, 10])
@pytest.mark.parametrize("clip", [None, 0.5])
def test_fit_is_adam_over_minibatches_in_order(size, clip):
    weights, data = problem()
    orders = draw_orders(np.random.default_rng(1), 3, 23)
    found, _, report = run(weights, data, orders, size=size, clip=clip)

    steps = [optax.adam(0.1, eps=1e-5)]
    plain = optax.chain(optax.clip_by_global_norm(clip), *steps) if clip else steps[0]
    state, last = plain.init(weights), []
    for order in orders:
        last = []
        for start in range(0, 23, size):
            rows = order[start : start + size]
            gradient, aux = jax.grad(quadratic, has_aux=True)(weights, tuple(d[rows] for d in data))
            change, state = plain.update(gradient, state)
            weights = optax.apply_updates(weights, change)
            last.append(float(aux["error"]))
    np.testing.assert_allclose(found["w"], weights["w"], rtol=1e-5)
    np.testing.assert_allclose(found["b"], weights["b"], rtol=1e-5)
    assert report["error"] == pytest.approx(np.mean(last), rel=1e-5), "mean over the minibatches of the last epoch"


def test_orders_are_permutations_and_differ():
    orders = draw_orders(np.random.default_rng(0), 4, 50)
    assert (np.sort(orders, axis=1) == np.arange(50)).all()
    assert len({order.tobytes() for order in orders}) == 4
    assert (orders == draw_orders(np.random.default_rng(0), 4, 50)).all()
