"""One run: a folder with everything needed to repeat, go on with, and judge it. (Interface; the loop follows.)"""

from pathlib import Path
from typing import NamedTuple

from trpl.experiments.config import Config


class RunResult(NamedTuple):
    folder: Path
    finished: bool  # False after SIGTERM or Ctrl-C: `trpl resume` goes on
    epochs: int
    final_return: float | None  # mean over the last 20 evaluations, None without any
    digest: str  # SHA-256 of weights, metrics and evaluations


def train(config: Config, out: str | Path | None = None, *, progress: bool = True) -> RunResult: ...


def resume(out: str | Path, *, progress: bool = True) -> RunResult: ...
