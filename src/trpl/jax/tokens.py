"""Sparse policies over a vocabulary in JAX: logits in, a few kept ids and the rest out.

    log p_k = z_k − log Z,    log p_rest = log Σ_{j∈r} e^{z_j} − log Z,    log Z = log Σ_j e^{z_j}

The sum over the rest excludes the kept logits instead of subtracting them, so that a rest of 1e-30 does not cancel.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from trpl.engines import values_of
from trpl.families.sparse import SparseCategorical


def choose_kept(
    logits: Array, sampled: Array, *, kept_tokens: int = 64, kept_mass: float = 1.0
) -> SparseCategorical[jax.Array]:
    """Choose the ids to keep, the sampled one and the most likely others, and score them without a gradient.

    Args:
        logits: The policy's logits `[*batch, vocabulary]`.
        sampled: The sampled tokens `[*batch]`; they are kept, in place 0.
        kept_tokens: Number of ids kept per token, including the sampled one.
        kept_mass: Keep only as many ids as hold this probability; the places after have id −1 and log-probability
            −inf.

    Returns:
        The policy over the kept ids and the rest.

    Raises:
        ValueError: Inconsistent shapes, an id outside the vocabulary, or a number out of range.

    Examples:
        >>> import jax.numpy as jnp
        >>> old = choose_kept(jnp.log(jnp.array([[0.5, 0.3, 0.1, 0.1]])), jnp.array([1]), kept_tokens=2)
        >>> old.ids, jnp.exp(old.log_probs).round(2)
        (Array([[1, 0]], dtype=int32), Array([[0.3, 0.5, 0.2]], dtype=float32))
    """
    if sampled.shape != logits.shape[:-1]:
        raise ValueError(f"expected one sampled token per row of logits, got {sampled.shape} for {logits.shape}")
    if kept_tokens < 1:
        raise ValueError(f"kept_tokens must be at least 1, not {kept_tokens}")
    if not 0.0 < kept_mass <= 1.0:
        raise ValueError(f"kept_mass must be in (0, 1], not {kept_mass}")
    _check_ids(sampled, logits.shape[-1], lowest=0)
    logits, first = jax.lax.stop_gradient(_wide(logits)), sampled[..., None].astype(jnp.int32)
    others = jnp.put_along_axis(logits, first, -math.inf, axis=-1, inplace=False)
    values, ids = jax.lax.top_k(others, min(kept_tokens, logits.shape[-1]) - 1)
    ids = jnp.where(values > -math.inf, ids, -1)  # else the sampled token again, among forbidden ones
    ids = jnp.concatenate((first, ids), axis=-1)
    if kept_mass < 1.0:
        probs = jnp.exp(jnp.take_along_axis(logits, ids, axis=-1) - jax.nn.logsumexp(logits, axis=-1, keepdims=True))
        needed = (jnp.cumsum(probs, axis=-1) - probs < kept_mass).at[..., 0].set(True)
        ids = jnp.where(needed, ids, -1)
    return score_kept(logits, ids)


def score_kept(logits: Array, ids: Array) -> SparseCategorical[jax.Array]:
    """Score given ids and the rest; differentiable in the logits.

    Args:
        logits: The policy's logits `[*batch, vocabulary]`.
        ids: The kept ids `[*batch, K]`, distinct, the sampled token in place 0; −1 marks an unused place.

    Returns:
        The policy over the kept ids and the rest.

    Raises:
        ValueError: Inconsistent shapes, no ids, or (outside `jit`) an id outside the vocabulary or kept twice.
    """
    if ids.shape[:-1] != logits.shape[:-1]:
        raise ValueError(f"ids {ids.shape} must have the batch shape of the logits {logits.shape}")
    if not ids.shape[-1]:
        raise ValueError("no id is kept; the sampled token is in place 0")
    _check_ids(ids, logits.shape[-1], lowest=-1)
    _check_ids(ids[..., :1], logits.shape[-1], lowest=0)
    _check_distinct(ids)
    logits = _wide(logits)
    unused, places = ids < 0, jnp.where(ids < 0, ids[..., :1], ids)
    kept = jnp.where(unused, -math.inf, jnp.take_along_axis(logits, places, axis=-1))
    others = jnp.put_along_axis(logits, places, -math.inf, axis=-1, inplace=False)
    highest = jax.lax.stop_gradient(jnp.max(others, axis=-1, keepdims=True))
    highest = jnp.where(highest > -math.inf, highest, 0.0)
    total = jnp.sum(jnp.exp(others - highest), axis=-1, keepdims=True)
    empty = total == 0.0
    rest = jnp.where(empty, -math.inf, highest + jnp.log(jnp.where(empty, 1.0, total)))
    log_probs = jnp.concatenate((kept, rest), axis=-1) - jax.nn.logsumexp(logits, axis=-1, keepdims=True)
    return SparseCategorical(ids, log_probs)


def _wide(logits: Array) -> Array:
    """Return the logits in float32 at least."""
    return logits.astype(jnp.promote_types(logits.dtype, jnp.float32))


def _check_ids(ids: Array, vocabulary: int, *, lowest: int) -> None:
    if not jnp.issubdtype(ids.dtype, jnp.integer):
        raise ValueError(f"token ids must be integers, not {ids.dtype}")
    values = values_of(ids)
    if values is not None and values.size and not ((values >= lowest) & (values < vocabulary)).all():
        raise ValueError(f"a token id is outside {lowest}…{vocabulary - 1}: {values.min()} to {values.max()}")


def _check_distinct(ids: Array) -> None:
    values = values_of(ids)
    if values is None:
        return
    ordered = np.sort(values, axis=-1)
    twice = ((ordered[..., 1:] == ordered[..., :-1]) & (ordered[..., 1:] >= 0)).any(-1)
    if twice.any():
        raise ValueError(f"an id is kept twice for {int(twice.sum())} tokens; its probability would count twice")
