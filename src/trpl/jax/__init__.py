"""Trust-region layers for JAX: immutable pytrees whose bounds are leaves, for `jit`, `vmap` and `grad`.

layer = KLProjection(mean_bound=0.03, cov_bound=1e-3)
projected = layer(predicted, old)
"""

from trpl.jax.layers import (
    FrobeniusProjection,
    JointKLProjection,
    KLProjection,
    WassersteinProjection,
)

__all__ = ["FrobeniusProjection", "JointKLProjection", "KLProjection", "WassersteinProjection"]
