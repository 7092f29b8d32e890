"""From run folders to columns of numbers.

A run folder holds `config.json`, `metrics.jsonl`, `evaluations.jsonl` and `timings.jsonl`, the last three perhaps
gzipped. Reading keeps only the columns a report shows, so that hundreds of runs fit into memory.
"""

from __future__ import annotations

import gc
import gzip
import json
import math
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from operator import itemgetter
from pathlib import Path
from types import NoneType
from typing import Any, NamedTuple

import numpy as np
import orjson

from trpl.errors import RecordError

METRICS = (
    "kl", "kl_max", "entropy", "bound", "mean_bound", "cov_bound",
    "before_mean", "before_mean_max", "before_cov", "before_cov_max",
    "after_mean", "after_mean_max", "after_cov", "after_cov_max",
)  # fmt: skip
TIMINGS = ("seconds", "steps_per_second")
LARGEST_COUNT = 10**12  # of epochs, steps and seeds
LARGEST_FILE = 2**30  # bytes


class Columns(NamedTuple):
    """One record file: a row per epoch. `values` has a float array per key; a null or a missing key is NaN."""

    epoch: np.ndarray
    steps: np.ndarray
    values: dict[str, np.ndarray]


@dataclass(frozen=True, eq=False)
class Run:
    """One training run as its folder tells it; `notes` says what was passed over in reading."""

    path: Path
    config: dict[str, Any]
    versions: dict[str, str]
    commit: str | None
    command: str
    created: str
    metrics: Columns
    evaluations: Columns  # values: "return", the mean over the epoch's episodes
    timings: Columns
    notes: tuple[str, ...] = ()

    @property
    def method(self) -> str:
        return self.config["method"]

    @property
    def env_id(self) -> str:
        return self.config["env_id"]

    @property
    def seed(self) -> int:
        return self.config["seed"]

    @property
    def total_steps(self) -> int:
        return self.config["total_steps"]

    @property
    def steps(self) -> int:
        """Environment steps taken so far."""
        return int(self.metrics.steps[-1])

    @property
    def finished(self) -> bool:
        return self.steps >= self.total_steps

    @property
    def num_epochs(self) -> int:
        """Epochs of the whole training, done or not: the budget rounded up to whole epochs."""
        return math.ceil(self.total_steps * len(self.metrics.steps) / self.steps)


def find_runs(paths: Iterable[Path]) -> list[Path]:
    """Run folders among and below `paths`, each once, in the order of their names."""
    found: dict[Path, Path] = {}
    for path in map(Path, paths):
        if not path.is_dir():
            raise RecordError(f"{path} is not a folder; give run folders or folders of them")
        inside = sorted(config.parent for config in path.rglob("config.json"))
        if not inside:
            raise RecordError(f"no run folder in {path}: none of its folders holds a config.json")
        for run in inside:
            found.setdefault(run.resolve(), run)
    return list(found.values())


def read_runs(paths: Iterable[Path]) -> tuple[list[Run], list[str]]:
    """All runs in `paths` that have at least one epoch, and notes on what was passed over."""
    runs: list[Run] = []
    notes: list[str] = []
    for path in find_runs(paths):
        with _without_collector():
            run = read_run(path)
        if run is None:
            notes.append(f"{path}: no epoch recorded yet, left out")
        else:
            runs.append(run)
            notes += run.notes
    if not runs:
        raise RecordError("none of the runs has recorded an epoch yet")
    return runs, notes


@contextmanager
def _without_collector() -> Iterator[None]:
    """No garbage collection meanwhile: records hold no cycles, and looking for some takes a third of the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def read_run(path: Path) -> Run | None:
    """The run in folder `path`, or None if it has not finished an epoch yet."""
    about = _read_config(path / "config.json")
    notes: list[str] = []
    metrics_file = _find(path, "metrics.jsonl")
    rows = _read_lines(metrics_file, notes) if metrics_file else []
    if metrics_file is None or not rows:
        return None
    metrics = _columns(metrics_file, rows, METRICS)
    evaluations, timings = (_empty(keys) for keys in (("return",), TIMINGS))
    if (file := _find(path, "evaluations.jsonl")) and (rows := _read_lines(file, notes)):
        evaluations = _evaluation_columns(file, rows)
    if (file := _find(path, "timings.jsonl")) and (rows := _read_lines(file, notes)):
        timings = _columns(file, rows, TIMINGS)
    return Run(
        path=path, config=about["config"], versions=about.get("versions") or {}, commit=about.get("commit"),
        command=about.get("command") or "", created=about.get("created") or "",
        metrics=metrics, evaluations=evaluations, timings=timings, notes=tuple(notes),
    )  # fmt: skip


def _find(folder: Path, name: str) -> Path | None:
    return next((file for file in (folder / name, folder / f"{name}.gz") if file.is_file()), None)


def _empty(keys: Sequence[str]) -> Columns:
    none = np.zeros(0)
    return Columns(none.astype(np.int64), none.astype(np.int64), dict.fromkeys(keys, none))


def _read_config(file: Path) -> dict[str, Any]:
    try:
        about = json.loads(file.read_bytes())
    except OSError as error:
        raise RecordError(f"{file} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise RecordError(f"{file}: not JSON ({error})") from error
    config = about.get("config") if isinstance(about, dict) else None
    if not isinstance(config, dict):
        raise RecordError(f'{file}: no "config" in it; is this a run folder?')
    for key, kind in {"method": str, "env_id": str, "seed": int, "total_steps": int}.items():
        if type(config.get(key)) is not kind:
            raise RecordError(f"{file}: {key} should be of type {kind.__name__}, found {str(config.get(key))[:60]!r}")
    if not (0 <= config["seed"] <= LARGEST_COUNT and 0 < config["total_steps"] <= LARGEST_COUNT):
        raise RecordError(f"{file}: seed or total_steps out of range")
    for key, kind in {"versions": dict, "commit": str, "command": str, "created": str}.items():
        if not isinstance(about.get(key, None), kind | NoneType):
            raise RecordError(f"{file}: {key} should be of type {kind.__name__}, found {str(about[key])[:60]!r}")
    return _printable(about)


def _printable(value: Any) -> Any:
    """`value` without lone surrogates, which JSON can spell and no file can hold."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {_printable(key): _printable(item) for key, item in value.items()}
    return [_printable(item) for item in value] if isinstance(value, list) else value


def _read_lines(file: Path, notes: list[str]) -> list[dict[str, Any]]:
    """The records of a JSON-lines file. A half-written last line is dropped with a note; other damage is refused."""
    content = _content(file)
    lines = content.split(b"\n")
    last = lines.pop()
    if last:
        if _parses(last):
            lines.append(last)
        else:
            notes.append(f"{file}, line {len(lines) + 1}: half-written last line, left out")
    whole = b"[" + b",".join(lines) + b"]"  # one parse for the whole file: half the time of one for each line
    for parse in (orjson.loads, json.loads):  # the slower one knows NaN, and numbers of any size
        try:
            rows = parse(whole)
        except (ValueError, RecursionError):
            continue
        if len(rows) == len(lines) and all(type(row) is dict for row in rows):
            return rows
    number = next((i for i, line in enumerate(lines, start=1) if not _parses(line)), 1)
    raise RecordError(f"{file}, line {number}: not a JSON record: {lines[number - 1][:60]!r}")


def _content(file: Path) -> bytes:
    """The file's bytes, unpacked where it is packed; no more than a record file can reasonably have."""
    try:
        with gzip.open(file) if file.suffix == ".gz" else file.open("rb") as opened:
            content = opened.read(LARGEST_FILE + 1)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise RecordError(f"{file}: damaged gzip file ({error})") from error
    except OSError as error:
        raise RecordError(f"{file} cannot be read: {error.strerror}") from error
    if len(content) > LARGEST_FILE:
        raise RecordError(f"{file}: larger than {LARGEST_FILE >> 20} MiB, no record of a run")
    return content


def _parses(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def _columns(file: Path, rows: list[dict[str, Any]], keys: Sequence[str]) -> Columns:
    epoch, steps, *values = _matrix(file, rows, ("epoch", "steps", *keys))
    for name, column in (("epoch", epoch), ("steps", steps)):
        broken = np.isnan(column)
        if broken.any():
            raise RecordError(f"{file}, line {int(broken.argmax()) + 1}: no {name}")
        broken = ~((column >= 1) & (column <= LARGEST_COUNT))
        if broken.any():
            line = int(broken.argmax())
            raise RecordError(f"{file}, line {line + 1}: {name} {column[line]:g} is out of range")
        behind = np.flatnonzero(np.diff(column) <= 0)
        if behind.size:
            line = int(behind[0]) + 2
            raise RecordError(f"{file}, line {line}: {name} {column[line - 1]:g} after {name} {column[line - 2]:g}")
    return Columns(epoch.astype(np.int64), steps.astype(np.int64), dict(zip(keys, values, strict=True)))


def _matrix(file: Path, rows: list[dict[str, Any]], keys: Sequence[str]) -> np.ndarray:
    """A row of floats for each of `keys`; null and missing are NaN."""
    try:
        values = list(map(itemgetter(*keys), rows))
    except KeyError:
        values = [tuple(map(row.get, keys)) for row in rows]
    if not set(map(type, chain.from_iterable(values))) <= {int, float, NoneType}:
        for line, row in enumerate(values, start=1):
            for key, value in zip(keys, row, strict=True):
                if type(value) not in (int, float, NoneType):
                    raise RecordError(f"{file}, line {line}: {key} should be a number or null, found {value!r}")
    try:
        return np.array(values, dtype=np.float64).T.copy()
    except OverflowError as error:
        raise RecordError(f"{file}: a whole number that is too large") from error


def _evaluation_columns(file: Path, rows: list[dict[str, Any]]) -> Columns:
    returns: list[Any] = [row.get("returns") for row in rows]
    for line, found in enumerate(returns, start=1):
        if not (type(found) is list and found and set(map(type, found)) <= {int, float}):
            raise RecordError(f"{file}, line {line}: returns should be a list of numbers, found {found!r}")
    try:
        means = np.array([sum(found) / len(found) for found in returns])
    except (OverflowError, ValueError) as error:
        raise RecordError(f"{file}: returns too large to average") from error
    return _columns(file, rows, ())._replace(values={"return": means})
