"""The runs of one tuning trial: the same settings with several seeds, in lockstep so that a poor trial ends early."""

import contextlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from trpl.errors import RunError
from trpl.runs.folder import is_run, locked, read_config, write_config
from trpl.runs.records import mean_returns
from trpl.runs.trainer import Trainer
from trpl.settings.config import WINDOW, Config


class Stopped(Exception):
    """The runs were asked to stop; they are saved."""


class SeedRuns(contextlib.ExitStack):
    """A run per configuration, in folders seed-<n>, resumed if begun before; a context manager."""

    def __init__(self, configs: Sequence[Config], folder: Path):
        super().__init__()
        self.configs, self.folder = configs, folder
        self.trainers: list[Trainer] = []

    def __enter__(self) -> "SeedRuns":
        super().__enter__()
        with contextlib.ExitStack() as opening:
            self.trainers = [opening.enter_context(open_run(c, self.folder / f"seed-{c.seed}")) for c in self.configs]
            self.push(opening.pop_all())
        return self

    def scores(self, *, stop: threading.Event) -> Iterator[tuple[int, float]]:
        """Yield each epoch with an evaluation, and the mean over seeds of their last 20 evaluations.

        Earlier epochs are read from the records. Raises Stopped, with all runs saved, once `stop` is set.
        """
        seen = [mean_returns(trainer.folder) for trainer in self.trainers]
        for epoch in range(1, self.configs[0].last_epoch + 1):
            for trainer, returns in zip(self.trainers, seen, strict=True):
                if trainer.epoch >= epoch:
                    continue
                if stop.is_set():
                    self.save()
                    raise Stopped
                _, evaluation, _ = trainer.step([])  # no events: a trial's records are in the study and the run folders
                if evaluation is not None:
                    returns[epoch] = evaluation
            if self.configs[0].evaluates(epoch):
                yield epoch, score(seen, epoch=epoch)
        self.save()

    def save(self) -> None:
        for trainer in self.trainers:
            trainer.save()


def score(seen: Sequence[Mapping[int, float]], *, epoch: int) -> float:
    """Return the mean over seeds of the mean of the last 20 evaluations up to `epoch`: at the end the final return."""
    last = [[returns[e] for e in sorted(returns) if e <= epoch][-WINDOW:] for returns in seen]
    return sum(sum(returns) / len(returns) for returns in last) / len(last)


@contextlib.contextmanager
def open_run(config: Config, folder: Path) -> Iterator[Trainer]:
    """Open a run at its newest checkpoint, or at its start, with its folder locked."""
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder), Trainer(config, folder) as trainer:
        if not is_run(folder):
            write_config(folder, config)
        elif read_config(folder) != config:
            raise RunError(f"{folder} holds a run with other settings")
        trainer.restore(other_versions=True)  # recorded; trials need not be bit-reproducible
        yield trainer
