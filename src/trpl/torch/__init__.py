"""Trust-region layers for PyTorch: `nn.Module`s that take and return Gaussians or `torch.distributions`.

layer = KLProjection(mean_bound=0.03, cov_bound=1e-3)
projected = layer(predicted, old)
"""

from trpl.messages import needs

with needs("torch"):
    from trpl.implicit import for_torch as _adapter  # noqa: F401 - compilers need its operators beforehand
    from trpl.torch import layers
    from trpl.torch.layers import *  # noqa: F403 - layers.py lists the layers

__all__: list[str] = []
__all__ += layers.__all__
