"""Ranges that tuning searches a setting in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Real:
    """Numbers from `low` to `high`; with `log` every order of magnitude is as likely as any other."""

    low: float
    high: float
    log: bool = False

    def __contains__(self, value: Any) -> bool:
        return self.low <= value <= self.high


@dataclass(frozen=True)
class Whole:
    """Whole numbers from `low` to `high`, both included."""

    low: int
    high: int
    log: bool = False

    def __contains__(self, value: Any) -> bool:
        return self.low <= value <= self.high


@dataclass(frozen=True)
class Choice:
    """One of some values without an order."""

    options: tuple[Any, ...]

    def __contains__(self, value: Any) -> bool:
        return value in self.options


Range = Real | Whole | Choice
