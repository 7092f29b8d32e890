"""A display that redraws a terminal or appends lines to a log."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

from rich.console import Console, RenderableType
from rich.live import Live
from rich.progress import Progress


class _StandardError(Console):
    def on_broken_pipe(self) -> None:
        """Show nothing more once the reader has gone, as in `2>&1 | head`; rich would end the program."""
        self.quiet = True


def standard_error() -> Console:
    """Make a console for progress on standard error.

    Returns:
        A console that falls silent when its reader has gone, instead of ending the program.
    """
    return _StandardError(stderr=True)


def live_table(console: Console) -> Live:
    """Make a display that is redrawn only on request."""
    return Live(console=console, auto_refresh=False)


class Screen:
    """A live display if `console` is a terminal, lines otherwise; a context manager.

    Args:
        console: Where to write; None shows nothing.
        live: Makes the live display.
    """

    def __init__(self, console: Console | None, live: Callable[[Console], Live | Progress] = live_table):
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
        """Redraw the live display.

        Args:
            content: Anything that rich can render.
        """
        assert isinstance(self.live, Live)
        self.live.update(content, refresh=True)

    def say(self, line: str) -> None:
        """Write a line above the live display, or into the log.

        Args:
            line: The line.
        """
        if self.console is not None:
            self.console.print(line, highlight=False, markup=False, soft_wrap=True)
