"""Generalised advantage estimation, in JAX, for rollouts with two kinds of endings."""

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
) -> jax.Array:
    """Advantages [T, N] of Schulman et al. (2016), from arrays [T, N].

    δ_t = r_t + γ V(s′_t)(1 − terminated_t) − V(s_t)
    A_t = δ_t + γλ (1 − (terminated_t ∨ truncated_t)) A_{t+1}

    s′_t is the true next state, before any reset: a time limit, and the end of the rollout, are bootstrapped from it;
    only `terminated` says that nothing comes after. Returns for the value function are A + V.

    The recurrence is linear, so it is solved by composing the maps A ↦ δ + cA pairwise instead of step by step.
    """
    residuals = rewards + discount * next_values * (1.0 - terminated) - values
    carried = discount * gae_lambda * (1.0 - (terminated | truncated))

    def compose(later, earlier):
        """The map of the earlier step after that of the later ones."""
        return earlier[0] + earlier[1] * later[0], earlier[1] * later[1]

    advantages, _ = jax.lax.associative_scan(compose, (residuals, carried * jnp.ones_like(residuals)), reverse=True)
    return advantages
