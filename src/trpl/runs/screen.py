"""A terminal that is redrawn, or a log that gets lines."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, Self

from rich.console import Console, RenderableType
from rich.live import Live


class Redrawn(Protocol):
    """What can be started on a terminal and stopped again: rich's `Live` and `Progress`."""

    def start(self) -> None: ...
    def stop(self) -> None: ...


def live_table(console: Console) -> Live:
    """Make something that is redrawn only when it is told to."""
    return Live(console=console, auto_refresh=False)


class Screen:
    """Shows something live where `console` is a terminal, else lines; use as a context manager.

    Args:
        console: Where to write; None shows nothing.
        live: Makes what is redrawn on a terminal.
    """

    def __init__(self, console: Console | None, live: Callable[[Console], Redrawn] = live_table):
        self.console = console
        self.live = live(console) if console is not None and console.is_terminal else None

    def __enter__(self) -> Self:
        if self.live is not None:
            self.live.start()
        return self

    def __exit__(self, *_: Any) -> None:
        if self.live is not None:
            self.live.stop()

    def draw(self, content: RenderableType) -> None:
        """Replace what a live table shows.

        Args:
            content: What rich can draw.
        """
        assert isinstance(self.live, Live)
        self.live.update(content, refresh=True)

    def say(self, line: str) -> None:
        """Write a line above what is live, or into the log.

        Args:
            line: The line.
        """
        if self.console is not None:
            self.console.print(line, highlight=False, markup=False, soft_wrap=True)
