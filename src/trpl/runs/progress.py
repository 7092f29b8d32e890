"""The display of a training run: a bar on a terminal, plain lines in a log."""

import time
from datetime import timedelta
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, TaskID, TextColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress

from trpl.messages import decimals
from trpl.policies.actions import ActionMap
from trpl.policies.heads import GaussianHead, Head, ProductHead
from trpl.presets.tables import TABLES
from trpl.runs.screen import Screen, standard_error
from trpl.settings import Config

SECONDS_BETWEEN_LINES = 10.0


def bar(console: Console) -> RichProgress:
    """Make the progress bar of a run."""
    status = TextColumn("{task.fields[status]}")
    return RichProgress(
        TextColumn("{task.description}"), BarColumn(bar_width=20), status, TimeRemainingColumn(), console=console
    )


class Progress(Screen):
    """Return, KL, entropy, steps per second of wall-clock time in this session, and time left; a context manager."""

    def __init__(self, config: Config, *, console: Console | None):
        super().__init__(console, bar)
        self.config = config
        self._evaluation: float | None = None
        self._task: TaskID | None = None
        self._first_epoch, self._started, self._next_line = 0, time.monotonic(), 0.0

    @classmethod
    def of(cls, config: Config, *, enabled: bool) -> "Progress":
        """Show progress on standard error, or nowhere."""
        return cls(config, console=standard_error() if enabled else None)

    def begin(self, epoch: int, head: Head) -> None:
        """Show where the run starts from, and its policy."""
        self._first_epoch, self._started = epoch, time.monotonic()
        title = f"{self.config.method} {self.config.env_id} seed {self.config.seed}"
        if not epoch:
            for line in remarks(self.config, head):
                self.say(line)
        if isinstance(self.live, RichProgress):
            self._task = self.live.add_task(
                title, total=self.config.last_epoch, completed=epoch, status="compiling ..."
            )
        else:
            start = f" from epoch {epoch}" if epoch else ""
            count = self.config.last_epoch
            epochs = f"{count} epoch{'' if count == 1 else 's'}"
            self.say(f"{title}: {epochs} of {self.config.rollout_size} steps{start}")

    def update(self, epoch: int, metrics: dict[str, Any], evaluation: float | None) -> None:
        """Show the epoch that just ended."""
        if evaluation is not None:
            self._evaluation = evaluation
        if isinstance(self.live, RichProgress) and self._task is not None:
            self.live.update(self._task, completed=epoch, status=self._status(epoch, metrics))
        elif self.console is not None:
            now = time.monotonic()
            if now >= self._next_line or epoch == self.config.last_epoch:
                self._next_line = now + SECONDS_BETWEEN_LINES
                left = (now - self._started) / (epoch - self._first_epoch) * (self.config.last_epoch - epoch)
                where = f"epoch {epoch}/{self.config.last_epoch}"
                self.say(f"{where}  {self._status(epoch, metrics)}  left {timedelta(seconds=round(left))}")

    def _status(self, epoch: int, metrics: dict[str, Any]) -> str:
        seconds = max(time.monotonic() - self._started, 1e-9)  # evaluations and compiling included
        rate = (epoch - self._first_epoch) * self.config.rollout_size / seconds
        returned = self._evaluation if self._evaluation is not None else metrics["train_return"]
        shown = "-" if returned is None else f"{returned:.{decimals(returned)}f}"
        return f"return {shown}  kl {metrics['kl']:.4f}  entropy {metrics['entropy']:.2f}  {rate:.0f} steps/s"


def remarks(config: Config, head: Head) -> list[str]:
    """List what a user may not expect of a run, before it starts."""
    parts = head.parts if isinstance(head, ProductHead) else (head,)
    boxes = {_treatment(part.actions) for part in parts if isinstance(part, GaussianHead)}
    found = [] if head.gaussian else [f"the policy is a {head.words}"]
    found += [f"actions {how}; initial deviation {config.initial_std:g}" for how in sorted(boxes)]
    if all(config.env_id not in table.tasks for table in TABLES.values()):
        found.append(
            f"no preset was tuned for {config.env_id}: these are the MuJoCo settings, with a budget of"
            f" {config.total_steps:,} steps (--steps N changes it)"
        )
    return found


def _treatment(actions: ActionMap | None) -> str:
    """Say how a Gaussian's numbers become actions in a Box."""
    if actions is None:
        return "as the policy gives them"
    if actions.squash:
        return "squashed into the box by tanh"
    moved = (actions.gain != 1.0).any() or actions.offset.any()
    units = "in units of the action box" if moved else "as the policy gives them"
    limits = [x for x in (actions.low, actions.high) if x is not None]
    return units + (", clipped to the box" if any(np.isfinite(x).any() for x in limits) else "")
