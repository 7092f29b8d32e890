"""The settings of GRPO with a trust region: those of `trl`, five more, and no clip by default."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from trl.trainer.grpo_config import GRPOConfig

from trpl.errors import ConfigError


@dataclass
class TrustRegionGRPOConfig(GRPOConfig):
    """`GRPOConfig` with a trust region in place of the clip.

    Attributes:
        trust_region_bound: ε, the largest KL of a token's projected policy to the old one; `inf` switches it off.
        regression_weight: α, the weight of KL(network ‖ projected policy), which pulls the network into the region.
        pessimism: Take the smaller gain of the projected and the network's own ratio, as PPO's minimum does, so that
            tokens that moved against their advantage are led back.
        kept_tokens: Ids kept per token, including the sampled one; all others are lumped into one class.
        kept_mass: Keep only as many of them as hold this probability under the old policy.
        epsilon: The ratio's clip, off by default; a number clips the projected ratio as well, so that clip and trust
            region act together. The bound of the projected policy holds as before. `epsilon_high` is trl's.

    Raises:
        ConfigError: A number out of range.
    """

    trust_region_bound: float = field(
        default=0.05, metadata={"help": "Largest KL divergence of a token's projected policy to the old policy."}
    )
    regression_weight: float = field(
        default=1.0, metadata={"help": "Weight of the KL divergence of the network to its projected policy."}
    )
    pessimism: bool = field(
        default=False, metadata={"help": "Take the smaller gain of the projected and the network's own ratio."}
    )
    kept_tokens: int = field(
        default=64, metadata={"help": "Ids kept per token, with the sampled one; all others are one more class."}
    )
    kept_mass: float = field(
        default=1.0 - 1e-5, metadata={"help": "Probability that the kept ids need to hold; fewer are kept if they do."}
    )
    epsilon: float = field(
        default=math.inf, metadata={"help": "Clip of the projected ratio, as in GRPO; off unless it is given."}
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.trust_region_bound > 0.0:
            raise ConfigError(f"trust_region_bound must be positive, not {self.trust_region_bound}")
        if not 0.0 <= self.regression_weight < math.inf:
            raise ConfigError(f"regression_weight must be 0 or positive, not {self.regression_weight}")
        if self.kept_tokens < 1:
            raise ConfigError(f"kept_tokens must be at least 1, not {self.kept_tokens}")
        if not 0.0 < self.kept_mass <= 1.0:
            raise ConfigError(f"kept_mass must be in (0, 1], not {self.kept_mass}")
