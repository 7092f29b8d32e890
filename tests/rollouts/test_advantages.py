import jax
import jax.numpy as jnp
import numpy as np
import pytest

from trpl.rollouts import generalised_advantages


def slow_advantages(rewards, values, next_values, terminated, truncated, discount, gae_lambda):
    """The definition, from the last step to the first."""
    advantages, after = np.zeros_like(rewards), np.zeros(rewards.shape[1])
    for t in reversed(range(len(rewards))):
        residual = rewards[t] + discount * next_values[t] * ~terminated[t] - values[t]
        after = residual + discount * gae_lambda * ~(terminated[t] | truncated[t]) * after
        advantages[t] = after
    return advantages


@pytest.mark.parametrize("shape", [(1, 1), (37, 3), (256, 1)])
def test_recurrence(shape):
    generator = np.random.default_rng(0)
    rewards, values, next_values = generator.normal(size=(3, *shape))
    terminated, truncated = generator.random((2, *shape)) < 0.15
    got = jax.jit(generalised_advantages)(
        rewards, values, next_values, terminated=terminated, truncated=truncated, discount=0.97, gae_lambda=0.9
    )
    expected = slow_advantages(rewards, values, next_values, terminated, truncated, 0.97, 0.9)
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)


def test_time_limit_is_not_an_ending():
    """Reward 1 for ever is worth 1/(1−γ), however short the episodes are cut: with that value no step is a surprise."""
    discount, shape = 0.9, (12, 1)
    worth = jnp.full(shape, 1 / (1 - discount))
    cut = jnp.arange(12)[:, None] % 3 == 2
    never = jnp.zeros(shape, bool)
    options = {"discount": discount, "gae_lambda": 0.95}
    as_limit = generalised_advantages(jnp.ones(shape), worth, worth, terminated=never, truncated=cut, **options)
    np.testing.assert_allclose(as_limit, 0.0, atol=1e-5)
    as_ending = generalised_advantages(jnp.ones(shape), worth, worth, terminated=cut, truncated=never, **options)
    np.testing.assert_allclose(as_ending[cut], 1 - worth[0, 0], rtol=1e-6)  # nothing comes after: the value was wrong


def test_lambda_one_is_the_discounted_return_to_the_cut():
    """With λ = 1: A_t = Σ γ^k r_{t+k} + γ^n V(s′) − V(s_t), closed form for reward 1 and three steps to the limit."""
    values, next_values = jnp.array([[1.0], [2.0], [3.0]]), jnp.array([[2.0], [3.0], [4.0]])
    got = generalised_advantages(
        jnp.ones((3, 1)),
        values,
        next_values,
        terminated=jnp.zeros((3, 1), bool),
        truncated=jnp.array([[False], [False], [True]]),
        discount=0.5,
        gae_lambda=1.0,
    )
    np.testing.assert_allclose(got[:, 0], [1.75 + 0.5 - 1.0, 1.5 + 1.0 - 2.0, 1.0 + 2.0 - 3.0], rtol=1e-6)


def test_nothing_flows_over_an_ending():
    rewards = jnp.zeros((4, 1)).at[2].set(5.0)
    ends = jnp.zeros((4, 1), bool).at[1].set(True)
    zero, never = jnp.zeros((4, 1)), jnp.zeros((4, 1), bool)
    options = {"discount": 0.9, "gae_lambda": 0.9}
    for terminated, truncated in ((ends, never), (never, ends)):
        got = generalised_advantages(rewards, zero, zero, terminated=terminated, truncated=truncated, **options)
        np.testing.assert_allclose(got[:, 0], [0.0, 0.0, 5.0, 0.0])
