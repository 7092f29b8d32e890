"""Compact records: the files of a finished run that reports read, small enough for a repository."""

import gzip
import os
import re
import shutil
from pathlib import Path

from trpl.errors import RunError
from trpl.runs import records
from trpl.runs.folder import EVALUATIONS, METRICS, TIMINGS, is_run, place_of, read_about, read_config, write_about
from trpl.settings.config import Config, differing


def compact(run: str | Path, results: str | Path, *, place: str | Path | None = None) -> Path:
    """Copy a run's records atomically to `results`/`place` (<env>/<method>/seed-<n> by default), replacing older ones.

    Metrics, evaluations and timings are gzipped reproducibly. `config.json` is copied, except that its command names
    runs/`place` instead of a path of this machine.
    """
    run = Path(run)
    config, done = read_config(run), _last_epoch(run)
    if done != config.last_epoch:
        raise RunError(f"{run} has done {done} of {config.last_epoch} epochs: only finished runs can be compacted")
    place = place or place_of(config)
    final = Path(results) / place
    temporary = final.with_name(f".{final.name}-{os.getpid()}")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    about = read_about(run)
    about["command"] = re.sub(r"(--out[ =])\S+", rf"\1runs/{Path(place).as_posix()}", about.get("command") or "")
    write_about(temporary, about)
    for name in (METRICS, EVALUATIONS, TIMINGS):
        if (run / name).exists():
            (temporary / f"{name}.gz").write_bytes(gzip.compress((run / name).read_bytes(), mtime=0))
    if _content(temporary) == _content(final):
        shutil.rmtree(temporary)
        return final
    if final.exists():
        aside = temporary.with_name(f"{temporary.name}-old")
        final.rename(aside)
        temporary.rename(final)
        shutil.rmtree(aside)
    else:
        temporary.rename(final)
    return final


def recorded(config: Config, folder: Path) -> bool:
    """Tell whether a folder holds the compact records of a finished run with these settings."""
    return is_run(folder) and _last_epoch(folder) == config.last_epoch and not differing(config, read_config(folder))


def _last_epoch(folder: Path) -> int:
    return max((line["epoch"] for line in records.read(folder, METRICS)[-1:]), default=0)


def _content(folder: Path) -> dict[str, bytes | None]:
    """Read the files of a folder, by name; None for a folder inside."""
    inside = folder.iterdir() if folder.is_dir() else ()
    return {path.name: path.read_bytes() if path.is_file() else None for path in inside}
