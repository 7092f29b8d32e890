"""Records of a run: JSON lines, one per epoch, and their one reader for trainer, sweeps and reports.

Lines are flushed as they are written. A kill may leave a partial line, or lines newer than the last checkpoint;
resuming removes both. Files may be gzipped, as compact records are.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import zlib
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from operator import itemgetter
from pathlib import Path
from types import NoneType
from typing import Any, NamedTuple

import numpy as np
import orjson

from trpl.errors import RecordError, RunError
from trpl.runs.folder import EVALUATIONS, LARGEST_COUNT, METRICS, TIMINGS, replace_file

METRIC_NAMES = (
    *("train_return", "train_length", "kl", "kl_max", "entropy", "entropy_target", "mean_bound", "cov_bound"),
    *("before_mean", "before_mean_max", "before_cov", "before_cov_max"),
    *("after_mean", "after_mean_max", "after_cov", "after_cov_max", "projected_mean_share", "projected_cov_share"),
    *("policy_loss", "value_loss", "penalty", "learning_rate", "learning_rate_vf", "std_mean"),
)
LARGEST_NUMBER = 1e300
LARGEST_FILE = 2**30  # bytes
Record = dict[str, Any]


def append(path: Path, record: Mapping[str, Any]) -> None:
    """Add a line."""
    with open(path, "a") as file:
        file.write(json.dumps(record) + "\n")


def flush(folder: Path) -> None:
    """Sync all lines to disk, so that a power cut cannot lose records of epochs in a checkpoint."""
    for name in (METRICS, EVALUATIONS, TIMINGS):
        if (folder / name).exists():
            with open(folder / name, "rb+") as file:
                os.fsync(file.fileno())


def metric_record(epoch: int, steps: int, metrics: Mapping[str, float | None]) -> Record:
    """Make a line of `metrics.jsonl`: every known name, None if it does not apply, then the method's own metrics."""
    known = {name: metrics.get(name) for name in METRIC_NAMES}
    return {"epoch": epoch, "steps": steps, **known, **{k: v for k, v in metrics.items() if k not in known}}


def find(folder: Path, name: str) -> Path | None:
    """Find a record file, plain or gzipped."""
    return next((file for file in (folder / name, folder / f"{name}.gz") if file.is_file()), None)


def read_rows(file: Path, notes: list[str] | None = None) -> list[Record]:
    """Read the records of a file.

    A partial last line is skipped, with a note if `notes` is given.

    Raises:
        RecordError: Any other line is damaged.
    """
    lines = _content(file).split(b"\n")
    last = lines.pop()
    if last and _parses(last):
        lines.append(last)
    elif last and notes is not None:
        notes.append(f"{file}, line {len(lines) + 1}: half-written last line, left out")
    whole = b"[" + b",".join(lines) + b"]"  # one parse for the whole file takes half the time of one per line
    for parse in (orjson.loads, json.loads):  # only the slower one accepts NaN and numbers of any size
        try:
            rows = parse(whole)
        except (ValueError, RecursionError):
            continue
        if len(rows) == len(lines) and all(type(row) is dict for row in rows):
            return rows
    number = next((i for i, line in enumerate(lines, start=1) if not _parses(line)), 1)
    raise RecordError(f"{file}, line {number}: not a JSON record: {lines[number - 1][:60]!r}")


def read(folder: Path, name: str) -> list[Record]:
    """Read a record file of a run and check each number; a missing file has no records."""
    file = find(folder, name)
    rows = [] if file is None else read_rows(file)
    for number, row in enumerate(rows, start=1):
        check(row, where=f"{file}, line {number}")
        if type(row.get("steps")) is not int:
            raise RecordError(f"{file}, line {number}: no steps")
        if name == EVALUATIONS and type(row.get("returns")) is not list:
            raise RecordError(f"{file}, line {number}: no returns")
    return rows


def mean_returns(folder: Path) -> dict[int, float]:
    """Average the returns of each evaluation of a run.

    Args:
        folder: The run folder.

    Returns:
        The means by epoch.
    """
    return {row["epoch"]: float(np.mean(row["returns"])) for row in read(folder, EVALUATIONS)}


def check(record: Any, *, where: str) -> None:
    """Refuse anything but a record: an epoch, and finite numbers, lists of them or null by name."""
    if not isinstance(record, dict) or type(record.get("epoch")) is not int:
        raise RecordError(f"{where}: not a record of an epoch: {str(record)[:60]}")
    for name, value in record.items():
        wanted = (int, float) if type(value) is list else (int, float, NoneType)
        numbers: list[Any] = value if type(value) is list and value else [value]
        if not all(type(number) in wanted and abs(number or 0) <= LARGEST_NUMBER for number in numbers):
            raise RecordError(f"{where}: {name} should be finite numbers, found {str(value)[:60]}")


def parse(line: bytes, *, where: str) -> Record:
    """Parse one line."""
    if not _parses(line):
        raise RecordError(f"{where}: not a JSON record: {line[:60]!r}")
    record = json.loads(line)
    check(record, where=where)
    return record


def cut_back(path: Path, *, epochs: Iterable[int]) -> None:
    """Keep the lines of `epochs`, byte for byte, and remove all later ones.

    Raises:
        RunError: Lines are missing.
    """
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []  # those that end with a newline
    wanted = list(epochs)
    kept = lines[: len(wanted)]
    found = [parse(line, where=f"{path}, line {n}")["epoch"] for n, line in enumerate(kept, start=1)]
    if found != wanted:
        place, epoch = next((n, e) for n, e in enumerate(wanted) if found[n : n + 1] != [e])
        raise RunError(f"{path}, line {place + 1}: the record of epoch {epoch} is missing; the run cannot be resumed")
    if path.exists():
        replace_file(path, b"".join(line + b"\n" for line in kept))


def digest(folder: Path, arrays: Iterable[tuple[str, np.ndarray]]) -> str:
    """Compute the SHA-256 of arrays by name and of the folder's metrics and evaluations; equal for equal runs."""
    found = hashlib.sha256()
    for name, array in sorted(arrays, key=lambda item: item[0]):
        found.update(name.encode())
        found.update(array.tobytes())
    for name in (METRICS, EVALUATIONS):
        found.update((folder / name).read_bytes() if (folder / name).exists() else b"")
    return found.hexdigest()


class Columns(NamedTuple):
    """The columns of one record file, a row per epoch.

    Args:
        epoch: The numbers of the epochs.
        steps: Environment steps so far.
        values: A float array per key; a null or a missing key is NaN.
    """

    epoch: np.ndarray
    steps: np.ndarray
    values: dict[str, np.ndarray]


def read_columns(folder: Path, name: str, keys: Sequence[str], notes: list[str]) -> Columns:
    """Read some columns of a record file.

    Args:
        folder: The run folder.
        name: The record file.
        keys: The columns; for evaluations "return", the mean.
        notes: A list to which remarks about damaged lines are appended.

    Returns:
        The columns by name; empty if there is no file.
    """
    file = find(folder, name)
    rows = [] if file is None else read_rows(file, notes)
    if file is None or not rows:
        none = np.zeros(0)
        return Columns(none.astype(np.int64), none.astype(np.int64), dict.fromkeys(keys, none))
    if name == EVALUATIONS:
        means = _mean_returns(file, rows)
        return _columns(file, rows, ())._replace(values={"return": means})
    return _columns(file, rows, keys)


def _columns(file: Path, rows: list[Record], keys: Sequence[str]) -> Columns:
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


def _matrix(file: Path, rows: list[Record], keys: Sequence[str]) -> np.ndarray:
    """Make a row of floats for each of `keys`; null and missing values are NaN."""
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


def _mean_returns(file: Path, rows: list[Record]) -> np.ndarray:
    returns: list[Any] = [row.get("returns") for row in rows]
    for line, found in enumerate(returns, start=1):
        if not (type(found) is list and found and set(map(type, found)) <= {int, float}):
            raise RecordError(f"{file}, line {line}: returns should be a list of numbers, found {found!r}")
    try:
        return np.array([sum(found) / len(found) for found in returns])
    except (OverflowError, ValueError) as error:
        raise RecordError(f"{file}: returns too large to average") from error


def _content(file: Path) -> bytes:
    """Read a file, decompressing gzip, up to a size limit for record files."""
    try:
        with gzip.open(file) if file.suffix == ".gz" else file.open("rb") as opened:
            content = opened.read(LARGEST_FILE + 1)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise RecordError(f"{file}: damaged gzip file ({error})") from error
    except OSError as error:
        raise RecordError(f"{file} cannot be read: {error.strerror}") from error
    if len(content) > LARGEST_FILE:
        raise RecordError(f"{file}: larger than {LARGEST_FILE >> 20} MiB, too large for a run's records")
    return content


def _parses(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False
