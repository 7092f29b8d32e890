"""What training shows: a bar on a terminal, plain lines in a log."""

import time
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress

from trpl.experiments.config import Config

SECONDS_BETWEEN_LINES = 10.0


class Progress:
    """Return, KL, entropy, steps per second of this session by the clock and time left; use as a context manager."""

    def __init__(self, config: Config, *, console: Console | None):
        self.config, self.console = config, console
        self._evaluation: float | None = None
        self._bar, self._task = None, None
        self._first_epoch, self._started, self._next_line = 0, time.monotonic(), 0.0

    @classmethod
    def of(cls, config: Config, *, enabled: bool) -> "Progress":
        return cls(config, console=Console(stderr=True) if enabled else None)

    def __enter__(self) -> "Progress":
        if self.console is not None and self.console.is_terminal:
            self._bar = RichProgress(
                TextColumn("{task.description}"),
                BarColumn(bar_width=20),
                TextColumn("{task.fields[status]}"),
                TimeRemainingColumn(),
                console=self.console,
            )
            self._bar.start()
        return self

    def __exit__(self, *_: Any) -> None:
        if self._bar is not None:
            self._bar.stop()

    def begin(self, epoch: int) -> None:
        """Say where the run starts from."""
        self._first_epoch, self._started = epoch, time.monotonic()
        title = f"{self.config.method} {self.config.env_id} seed {self.config.seed}"
        if self._bar is not None:
            self._task = self._bar.add_task(
                title, total=self.config.num_epochs, completed=epoch, status="compiling ..."
            )
        elif self.console is not None:
            start = f" from epoch {epoch}" if epoch else ""
            self._print(f"{title}: {self.config.num_epochs} epochs of {self.config.rollout_size} steps{start}")

    def update(self, epoch: int, metrics: dict[str, Any], evaluation: float | None) -> None:
        """Show the epoch that just ended."""
        if evaluation is not None:
            self._evaluation = evaluation
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=epoch, status=self._status(epoch, metrics))
        elif self.console is not None:
            now = time.monotonic()
            if now >= self._next_line or epoch == self.config.num_epochs:
                self._next_line = now + SECONDS_BETWEEN_LINES
                left = (now - self._started) / (epoch - self._first_epoch) * (self.config.num_epochs - epoch)
                where = f"epoch {epoch}/{self.config.num_epochs}"
                self._print(f"{where}  {self._status(epoch, metrics)}  left {_duration(left)}")

    def _print(self, line: str) -> None:
        assert self.console is not None
        self.console.print(line, highlight=False, markup=False, soft_wrap=True)

    def _status(self, epoch: int, metrics: dict[str, Any]) -> str:
        seconds = max(time.monotonic() - self._started, 1e-9)  # evaluations and compiling included
        rate = (epoch - self._first_epoch) * self.config.rollout_size / seconds
        returned = self._evaluation if self._evaluation is not None else metrics["train_return"]
        shown = "-" if returned is None else f"{returned:.0f}"
        return f"return {shown}  kl {metrics['kl']:.4f}  entropy {metrics['entropy']:.2f}  {rate:.0f} steps/s"


def _duration(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}"
