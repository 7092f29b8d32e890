"""Trust-region layers for PyTorch: `nn.Module`s that take and return Gaussians or `torch.distributions`.

layer = KLProjection(mean_bound=0.03, cov_bound=1e-3)
projected = layer(predicted, old)
"""

from trpl.rules import prepare_torch
from trpl.torch.layers import FrobeniusProjection, JointKLProjection, KLProjection, WassersteinProjection

prepare_torch()

__all__ = ["FrobeniusProjection", "JointKLProjection", "KLProjection", "WassersteinProjection"]
