"""Trust-region layers for JAX: immutable pytrees whose bounds are leaves, for `jit`, `vmap` and `grad`.

layer = KLProjection(mean_bound=0.03, cov_bound=1e-3)
projected = layer(predicted, old)
"""

from trpl.messages import needs

with needs("jax"):
    from trpl.jax import layers
    from trpl.jax.layers import *  # noqa: F403 - layers.py lists the layers

__all__: list[str] = []
__all__ += layers.__all__
