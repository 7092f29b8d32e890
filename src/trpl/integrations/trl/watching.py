"""Metrics of a run with trust regions: exact KL per token, and the share of projected tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from accelerate import Accelerator
from torch import Tensor

from trpl.families.sparse import SparseCategorical
from trpl.torch.tokens import ProjectedTokens

MEANS = ("kl/mean", "projected_kl/mean", "share_projected", "regression", "rest")
MAXIMA = ("kl/max", "projected_kl/max")


class Watch:
    """Means and maxima over all tokens since the last log, of all processes."""

    def __init__(self, accelerator: Accelerator) -> None:
        self.accelerator = accelerator
        self.sums: dict[str, Tensor] = {}
        self.maxima: dict[str, Tensor] = {}

    def add(self, mode: str, tokens: Sequence[ProjectedTokens], predicted: Sequence[SparseCategorical[Tensor]]) -> None:
        """Add the tokens of a batch."""
        kl, after = (torch.cat([getattr(part, name) for part in tokens]) for name in ("kl", "projected_kl"))
        outside = torch.cat([part.projected for part in tokens])
        regression = torch.cat([part.regression.detach() for part in tokens])
        rest = torch.cat([policy.log_probs[:, -1].detach().exp() for policy in predicted])
        values = (torch.ones_like(kl), kl, after, outside, regression, rest)
        sums = torch.stack([x.double().sum() for x in values])
        sums = cast(Tensor, self.accelerator.reduce(sums, reduction="sum"))
        highest = torch.stack([torch.cat((x, x.new_zeros(1))).amax() for x in (kl, after)])
        highest = cast(Tensor, self.accelerator.gather(highest[None])).amax(0)
        self.sums[mode] = self.sums[mode] + sums if mode in self.sums else sums
        self.maxima[mode] = torch.maximum(self.maxima[mode], highest) if mode in self.maxima else highest

    def flush(self, mode: str) -> dict[str, float]:
        """Return the metrics to log, and reset; empty if nothing could have been projected."""
        if mode not in self.sums:
            return {}
        count, *sums = self.sums.pop(mode).tolist()
        values = [value / max(count, 1.0) for value in sums] + self.maxima.pop(mode).tolist()
        return {f"trust_region/{name}": value for name, value in zip(MEANS + MAXIMA, values, strict=True)}
