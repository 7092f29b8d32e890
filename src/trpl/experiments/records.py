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
from typing import Any

from trpl.errors import RunError
from trpl.experiments.config import Config

CONFIG, METRICS, EVALUATIONS, TIMINGS = "config.json", "metrics.jsonl", "evaluations.jsonl", "timings.jsonl"
METRIC_NAMES = (
    *("train_return", "train_length", "kl", "kl_max", "entropy", "entropy_target", "mean_bound", "cov_bound"),
    *("before_mean", "before_mean_max", "before_cov", "before_cov_max"),
    *("after_mean", "after_mean_max", "after_cov", "after_cov_max", "projected_mean_share", "projected_cov_share"),
    *("policy_loss", "value_loss", "penalty", "learning_rate", "learning_rate_vf", "std_mean"),
)
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
    temporary = folder / f"{CONFIG}.tmp"
    temporary.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")
    os.replace(temporary, folder / CONFIG)


def read_config(folder: str | Path) -> Config:
    path = Path(folder) / CONFIG
    try:
        return Config.from_json(json.loads(path.read_text())["config"])
    except FileNotFoundError:
        raise RunError(f"{folder} is not a run folder: it has no {CONFIG}") from None
    except (json.JSONDecodeError, KeyError, TypeError) as error:
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


def read(path: Path) -> list[dict[str, Any]]:
    """All whole lines; a last one cut off by a kill is left out."""
    if not path.exists():
        return []
    lines = path.read_text().split("\n")
    return [json.loads(line) for line in lines[:-1]]


def cut_back(path: Path, *, epoch: int) -> None:
    """Keep the lines up to `epoch`, byte for byte, and nothing after them."""
    if not path.exists():
        return
    kept = []
    for line in path.read_bytes().split(b"\n")[:-1]:
        if json.loads(line)["epoch"] > epoch:
            break
        kept.append(line + b"\n")
    temporary = path.with_suffix(".tmp")
    temporary.write_bytes(b"".join(kept))
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
