"""What a run folder holds besides checkpoints: `config.json` and lines of JSON, one per epoch.

Lines are flushed as they are written. A kill may leave half a line, or lines newer than the last checkpoint; resuming
cuts both.
"""

import hashlib
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import NoneType
from typing import Any

from trpl.errors import ConfigError, RunError
from trpl.experiments.config import Config

CONFIG, METRICS, EVALUATIONS, TIMINGS = "config.json", "metrics.jsonl", "evaluations.jsonl", "timings.jsonl"
METRIC_NAMES = (
    *("train_return", "train_length", "kl", "kl_max", "entropy", "entropy_target", "mean_bound", "cov_bound"),
    *("before_mean", "before_mean_max", "before_cov", "before_cov_max"),
    *("after_mean", "after_mean_max", "after_cov", "after_cov_max", "projected_mean_share", "projected_cov_share"),
    *("policy_loss", "value_loss", "penalty", "learning_rate", "learning_rate_vf", "std_mean"),
)
LARGEST = 1e300  # of numbers in a record
PACKAGES = ("trpl", "numpy", "jax", "jaxlib", "optax", "gymnasium", "mujoco")


def write_config(folder: Path, config: Config) -> None:
    """Everything needed to repeat the run, written so that it is there whole or not at all."""
    content = {
        "config": config.to_json(),
        "versions": versions(),
        "commit": commit(),
        "command": " ".join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    replace_file(folder / CONFIG, (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode())


def read_config(folder: str | Path) -> Config:
    path = Path(folder) / CONFIG
    try:
        return Config.from_json(json.loads(path.read_bytes())["config"])
    except (FileNotFoundError, NotADirectoryError):
        raise RunError(f"{folder} is not a run folder: it has no {CONFIG}") from None
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise RunError(f"{path} cannot be read: {type(error).__name__}: {error}") from error


def versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def commit() -> str | None:
    """The commit of the source tree this package is run from, None when it is installed."""
    root = Path(__file__).resolve().parents[3]
    if not (root / ".git").exists():
        return None
    try:
        done = subprocess.run(["git", "rev-parse", "HEAD"], cwd=root, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None


def append(path: Path, record: Mapping[str, Any]) -> None:
    with open(path, "a") as file:
        file.write(json.dumps(record) + "\n")


def flush(folder: Path) -> None:
    """Bring all lines to the disk: a checkpoint must not survive a power cut that they do not."""
    for name in (METRICS, EVALUATIONS, TIMINGS):
        if (folder / name).exists():
            with open(folder / name, "rb+") as file:
                os.fsync(file.fileno())


def read(path: Path) -> list[dict[str, Any]]:
    """All whole lines; a last one cut off by a kill is left out."""
    found = [parse(line, where=f"{path}, line {number}") for number, line in enumerate(whole_lines(path), start=1)]
    for number, record in enumerate(found, start=1):
        if type(record.get("steps")) is not int:
            raise RunError(f"{path}, line {number}: no steps")
        if path.name == EVALUATIONS and type(record.get("returns")) is not list:
            raise RunError(f"{path}, line {number}: no returns")
    return found


def whole_lines(path: Path) -> list[bytes]:
    return path.read_bytes().split(b"\n")[:-1] if path.exists() else []


def parse(line: bytes, *, where: str) -> dict[str, Any]:
    """A record: an epoch, and numbers, lists of numbers or null by name."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise RunError(f"{where}: damaged ({error}): {line[:60]!r}") from error
    if not isinstance(record, dict) or type(record.get("epoch")) is not int:
        raise RunError(f"{where}: not a record of an epoch: {line[:60]!r}")
    for name, value in record.items():
        wanted = (int, float) if type(value) is list else (int, float, NoneType)
        numbers = value if type(value) is list and value else [value]
        if not all(type(number) in wanted and -LARGEST <= (number or 0) <= LARGEST for number in numbers):
            raise RunError(f"{where}: {name} should be finite numbers, found {str(value)[:60]}")
    return record


def cut_back(path: Path, *, epochs: Iterable[int]) -> None:
    """Keep the lines of `epochs`, byte for byte, and nothing after them; lines that are missing are an error."""
    lines = whole_lines(path)
    wanted = list(epochs)
    kept = lines[: len(wanted)]
    found = [parse(line, where=f"{path}, line {n}")["epoch"] for n, line in enumerate(kept, start=1)]
    if found != wanted:
        place, epoch = next((n, e) for n, e in enumerate(wanted) if found[n : n + 1] != [e])
        raise RunError(
            f"{path}, line {place + 1}: the record of epoch {epoch} is missing; the run cannot go on from it"
        )
    if path.exists():
        replace_file(path, b"".join(line + b"\n" for line in kept))


def replace_file(path: Path, content: bytes) -> None:
    """Write a file so that it is there whole or as it was before."""
    temporary = path.with_name(f"{path.name}.tmp")
    with open(temporary, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def metric_record(epoch: int, steps: int, metrics: Mapping[str, float | None]) -> dict[str, Any]:
    """A line of `metrics.jsonl`: every known name, None where it does not apply, then what the method adds."""
    known = {name: metrics.get(name) for name in METRIC_NAMES}
    return {"epoch": epoch, "steps": steps, **known, **{k: v for k, v in metrics.items() if k not in known}}


def digest(folder: Path, arrays: Iterable[tuple[str, Any]]) -> str:
    """SHA-256 of the given arrays by name and of the folder's metrics and evaluations; equal for equal runs."""
    found = hashlib.sha256()
    for name, array in sorted(arrays, key=lambda item: item[0]):
        found.update(name.encode())
        found.update(array.tobytes())
    for name in (METRICS, EVALUATIONS):
        found.update((folder / name).read_bytes() if (folder / name).exists() else b"")
    return found.hexdigest()
