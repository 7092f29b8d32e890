"""Ranges that tuning searches a setting in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Real:
    """Search real numbers.

    Args:
        low: The smallest.
        high: The largest.
        log: Whether every order of magnitude is as likely as any other.
    """

    low: float
    high: float
    log: bool = False

    def __contains__(self, value: Any) -> bool:
        return self.low <= value <= self.high


@dataclass(frozen=True)
class Whole:
    """Search whole numbers.

    Args:
        low: The smallest.
        high: The largest.
        log: Whether every order of magnitude is as likely as any other.
    """

    low: int
    high: int
    log: bool = False

    def __contains__(self, value: Any) -> bool:
        return self.low <= value <= self.high


@dataclass(frozen=True)
class Choice:
    """Search some values without an order.

    Args:
        options: The values.
    """

    options: tuple[Any, ...]

    def __contains__(self, value: Any) -> bool:
        return value in self.options


Range = Real | Whole | Choice
