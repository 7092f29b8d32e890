"""Ranges of settings for tuning."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Real:
    """A range of real numbers.

    Args:
        low: The smallest.
        high: The largest.
        log: Whether to search on a logarithmic scale.
    """

    low: float
    high: float
    log: bool = False

    def __contains__(self, value: Any) -> bool:
        return self.low <= value <= self.high


class Whole(Real):
    """A range of whole numbers, with the arguments of `Real`."""


@dataclass(frozen=True)
class Choice:
    """A set of values without an order.

    Args:
        options: The values.
    """

    options: tuple[Any, ...]

    def __contains__(self, value: Any) -> bool:
        return value in self.options


Range = Real | Choice
