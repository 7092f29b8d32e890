"""Generalised advantage estimation, in JAX, with separate treatment of termination and truncation."""

import jax
import jax.numpy as jnp


def generalised_advantages(
    rewards: jax.Array,
    values: jax.Array,
    next_values: jax.Array,
    *,
    terminated: jax.Array,
    truncated: jax.Array,
    discount: float | jax.Array,
    gae_lambda: float | jax.Array,
    released_time_limits: bool = False,
) -> jax.Array:
    """Compute generalised advantages (Schulman et al. 2016).

        δ_t = r_t + γ V(s′_t)(1 − terminated_t) − V(s_t)
        A_t = δ_t + γλ (1 − (terminated_t ∨ truncated_t)) A_{t+1}

    s′_t is the next state before any reset: time limits and the end of the rollout are bootstrapped from it; only
    `terminated` means that nothing follows. Returns for the value function are A + V.

    Args:
        rewards: r [T, N].
        values: V(s) [T, N].
        next_values: V(s′) [T, N].
        terminated: Whether a step ended its episode [T, N].
        truncated: Whether a step reached a time limit [T, N].
        discount: γ.
        gae_lambda: λ.
        released_time_limits: Whether A = 0, and so A + V = V(s), at a time limit, as in the authors' release.

    Returns:
        Advantages [T, N].
    """
    residuals = rewards + discount * next_values * (1.0 - terminated) - values
    if released_time_limits:
        residuals = jnp.where(truncated, 0.0, residuals)
    carried = discount * gae_lambda * (1.0 - (terminated | truncated))

    def earlier(later_advantage, step):
        advantage = step[0] + step[1] * later_advantage
        return advantage, advantage

    _, advantages = jax.lax.scan(earlier, jnp.zeros_like(residuals[0]), (residuals, carried), reverse=True)
    return advantages
