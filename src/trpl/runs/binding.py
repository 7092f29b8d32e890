"""A note in the log if the audit shows that the trust region hardly ever, or always, binds."""

from collections.abc import Mapping
from typing import Any

WINDOW = 20  # epochs to average over
RARELY, ALWAYS = 0.01, 0.99  # shares of states
PARTS = {
    "mean": ("projected_mean_share", "mean_bound"),
    "covariance": ("projected_cov_share", "cov_bound"),
    "policy": ("projected_mean_share", "bound"),  # one bound on the whole KL
}


class Binding:
    """Watches the share of states that the layer projects, and notes an extreme share once per part."""

    def __init__(self) -> None:
        self._seen: dict[str, list[float]] = {part: [] for part in PARTS}

    def advice(self, metrics: Mapping[str, Any]) -> str | None:
        """Take an epoch's metrics; return a note if there is one."""
        words = []
        for part, (key, bound) in PARTS.items():
            if part not in self._seen or metrics.get(key) is None or metrics.get(bound) is None:
                continue
            seen = self._seen[part]
            seen.append(metrics[key])
            del seen[:-WINDOW]
            share = sum(seen) / len(seen)
            if len(seen) == WINDOW and not RARELY < share < ALWAYS:
                del self._seen[part]
                where = f"over {WINDOW} epochs the {part} was projected in {share:.0%} of states"
                words.append(f"{where}: {_advice(share, bound)}")
        return f"note: {'; '.join(words)}" if words else None


def _advice(share: float, bound: str) -> str:
    if share <= RARELY:
        return f"the region hardly ever binds; a smaller {bound} or a larger learning_rate makes it matter"
    return f"the region always binds; a larger {bound} or a smaller learning_rate lets the policy move"
