"""The run folder: the names of its files, its lock, and its `config.json`.

config.json       settings, versions, commit and command of the run
metrics.jsonl     a line per epoch (`records`), as in evaluations.jsonl and timings.jsonl
checkpoints/      `trpl.policies.storage`
tensorboard/      events;  learning_curve.png, log.txt, .lock
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import platform
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import NoneType
from typing import Any

from trpl.errors import ConfigError, RecordError, RunError
from trpl.methods.registry import config_from_json, plugins
from trpl.policies.storage import BEST, FOLDER, best_or_same, newest_checkpoint, no_best, run_inside, write_flushed
from trpl.settings import Config

CONFIG, METRICS, EVALUATIONS, TIMINGS = "config.json", "metrics.jsonl", "evaluations.jsonl", "timings.jsonl"
TENSORBOARD, CURVE, LOG, LOCK = "tensorboard", "learning_curve.png", "log.txt", ".lock"
COMPILED = ".compiled"  # beside the runs of a sweep or study: their shared cache of compiled code
PACKAGES = ("trpl", "numpy", "jax", "jaxlib", "optax", "gymnasium", "mujoco")
NEEDED = {"method": str, "env_id": str, "seed": int, "total_steps": int}  # settings, and the rest of `config.json`:
OPTIONAL = {"versions": dict, "commit": str, "command": str, "created": str, "plugins": list, "stretches": list}
LARGEST_COUNT = 10**12  # of epochs, steps and seeds in records


def place_of(config: Config, *, variant: str = "") -> Path:
    """Return a run's path relative to the folder of all runs.

    Args:
        config: Its settings.
        variant: Its name among runs of its method and task with other settings.

    Returns:
        <env>/<method>/seed-<n>, or <env>/<method>/<variant>/seed-<n>.
    """
    return Path(config.env_id, config.method, variant, f"seed-{config.seed}")


def is_run(folder: Path) -> bool:
    """Tell whether a folder holds a run.

    Args:
        folder: Any folder.

    Returns:
        Whether a `config.json` is there.
    """
    return (folder / CONFIG).exists()


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock a run folder for this process; the lock ends with the process, however it ends.

    Args:
        folder: The run folder.

    Yields:
        Nothing.

    Raises:
        RunError: Another process holds the lock.
    """
    import fcntl

    with open(folder / LOCK, "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise RunError(f"{folder} is in use by another process") from None
        yield


def in_use(folder: Path) -> bool:
    """Tell whether a process, on this machine or another that shares the disk, is working on a run.

    Args:
        folder: The run folder.

    Returns:
        Whether it is locked.
    """
    if not (folder / LOCK).exists():
        return False
    try:
        with locked(folder):
            return False
    except RunError:
        return True


def replace_file(path: Path, content: bytes) -> None:
    """Write a file atomically.

    Args:
        path: The file.
        content: Its new content.
    """
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")  # two processes may write the same file
    write_flushed(temporary, content)
    os.replace(temporary, path)


def write_config(folder: Path, config: Config) -> None:
    """Write everything needed to repeat the run.

    Args:
        folder: The run folder.
        config: Its settings.
    """
    about = {
        "config": config.to_json(),
        "versions": versions(),
        "commit": commit(),
        "command": " ".join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "created": _now(),
        "stretches": [stretch(config, epoch=0)],
        **({"plugins": plugins()} if plugins() else {}),
    }
    write_about(folder, about)


def stretch(config: Config, *, epoch: int) -> dict[str, Any]:
    """Describe the stretch of a run after `epoch`: settings, versions, host, processor and time."""
    return {
        "after_epoch": epoch,
        "total_steps": config.total_steps,
        "versions": versions(),
        "commit": commit(),
        "host": socket.gethostname(),
        "processor": processor(),
        "started": _now(),
    }


def add_stretch(folder: Path, config: Config, *, epoch: int) -> None:
    """Record that the run is resumed after `epoch`, perhaps with other versions or a new number of steps."""
    about = read_about(folder)
    about["config"] |= {"total_steps": config.total_steps, "stop_after": config.stop_after}
    about["stretches"] = [*stretches(about), stretch(config, epoch=epoch)]
    write_about(folder, about)


def stretches(about: Mapping[str, Any]) -> list[dict[str, Any]]:
    """List the stretches of a run; records of 0.1.0 have a single one."""
    first = {"after_epoch": 0, "total_steps": about["config"]["total_steps"], "versions": about.get("versions") or {}}
    return about.get("stretches") or [first]


def kept_stretches(about: Mapping[str, Any]) -> list[dict[str, Any]]:
    """List the stretches whose epochs are in the records.

    Args:
        about: The content of the run's `config.json`.

    Returns:
        The stretches without those that ended before their first checkpoint.
    """
    kept: list[dict[str, Any]] = []
    for part in stretches(about):
        kept = [*(other for other in kept if other["after_epoch"] < part["after_epoch"]), part]
    return kept


def changed_versions(about: Mapping[str, Any]) -> list[str]:
    """List packages whose versions differ from those that the run was last computed with."""
    before, now = stretches(about)[-1].get("versions") or {}, versions()
    return [f"{name} {before[name]} is now {now.get(name, 'gone')}" for name in before if before[name] != now.get(name)]


def changed_processor(about: Mapping[str, Any]) -> str | None:
    """Say that the run was last computed on another processor, whose vector instructions may round differently."""
    before, now = stretches(about)[-1].get("processor"), processor()
    if before in (None, now):
        return None
    return f"the run was computed on another processor ({before}, now {now}): the last digits may differ"


def processor() -> str:
    """Return the processor's name."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:  # not Linux
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def write_about(folder: Path, about: Mapping[str, Any]) -> None:
    """Write `config.json` atomically.

    Args:
        folder: The run folder.
        about: Its content, as `read_about` returns it.
    """
    replace_file(folder / CONFIG, (json.dumps(_printable(about), indent=1, ensure_ascii=False) + "\n").encode())


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def locate(path: str | Path) -> tuple[Path, Path]:
    """Find the run folder and the checkpoint of a path to either.

    Args:
        path: A run, one of its checkpoints, or RUN/best.

    Returns:
        The run folder, and the checkpoint folder.

    Raises:
        RunError: It is neither.
        CheckpointError: The run has no sound checkpoint, or this is not one.
    """
    path = best_or_same(path)
    run = path if is_run(path) else run_around(path)
    if run is not None and path.name == BEST and not path.exists():
        raise RunError(no_best(run))
    if not path.exists():
        raise RunError(f"{path} is not a run folder: it does not exist")
    if run is None:
        inside = run_inside(path, CONFIG)
        raise RunError(f"{path} is not a run folder (it has no {CONFIG}), nor a checkpoint of one{inside}")
    if path != run and path.absolute().parent.name != FOLDER:
        raise RunError(f"{path} is neither a run folder nor a checkpoint of one; its run is {run}")
    return run, newest_checkpoint(path)


def run_around(path: Path) -> Path | None:
    """Return the run folder that a path is in, or None."""
    return next((parent for parent in path.absolute().parents if is_run(parent)), None)


def read_config(folder: str | Path) -> Config:
    """Read the settings of a run.

    Args:
        folder: The run folder.

    Returns:
        The configuration.

    Raises:
        RunError: The folder is not a run folder.
        RecordError: Its `config.json` is damaged.
        ConfigError: A setting does not exist, or its value is invalid.
    """
    if not is_run(Path(folder)):
        why = f"it has no {CONFIG}" if Path(folder).exists() else "it does not exist"
        around = run_around(Path(folder))
        where = run_inside(Path(folder), CONFIG) if around is None else f"; its run is {around}"
        raise RunError(f"{folder} is not a run folder: {why}{where}")
    about = read_about(Path(folder))
    try:
        return config_from_json(about["config"])
    except ConfigError as error:
        made_with = "".join(f" --plugin {word}" for word in about.get("plugins") or ())
        hint = f" (the run was made with{made_with})" if made_with else ""
        raise ConfigError(f"{Path(folder) / CONFIG}: {error}{hint}") from error


def read_about(folder: Path) -> dict[str, Any]:
    """Read `config.json`, checking its structure but not its settings, so that runs of any version can be reported.

    Args:
        folder: The run folder.

    Returns:
        Its content.

    Raises:
        RecordError: It is damaged.
    """
    file = folder / CONFIG
    try:
        about = json.loads(file.read_bytes())
    except OSError as error:
        raise RecordError(f"{file} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise RecordError(f"{file} cannot be read: not JSON ({type(error).__name__}: {error})") from error
    config = about.get("config") if isinstance(about, dict) else None
    if not isinstance(config, dict):
        raise RecordError(f'{file} cannot be read: no settings under "config" in it; is this a run folder?')
    needed = [(key, config.get(key), (kind,)) for key, kind in NEEDED.items()]
    for key, value, kinds in (*needed, *((key, about.get(key), (kind, NoneType)) for key, kind in OPTIONAL.items())):
        if type(value) not in kinds:
            raise RecordError(f"{file}: {key} should be of type {kinds[0].__name__}, found {str(value)[:60]!r}")
    if not (0 <= config["seed"] <= LARGEST_COUNT and 0 < config["total_steps"] <= LARGEST_COUNT):
        raise RecordError(f"{file}: seed or total_steps out of range")
    for part in about.get("stretches") or ():
        wanted = {"after_epoch": int, "total_steps": int, "versions": dict}
        if not isinstance(part, dict) or any(type(part.get(key)) is not kind for key, kind in wanted.items()):
            raise RecordError(f"{file}: each of the stretches should be a record of {', '.join(wanted)}")
    return _printable(about)


def _printable(value: Any) -> Any:
    """Remove lone surrogates: JSON and command lines with other encodings have them, UTF-8 has not."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {_printable(key): _printable(item) for key, item in value.items()}
    return [_printable(item) for item in value] if isinstance(value, list) else value


def versions() -> dict[str, str]:
    """List the versions of the packages that a run's numbers depend on."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return found


def commit() -> str | None:
    """Return the commit of the source tree that this package runs from; None if it is installed."""
    root = Path(__file__).resolve().parents[3]
    if not (root / ".git").exists():
        return None
    try:
        done = subprocess.run(["git", "rev-parse", "HEAD"], cwd=root, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None
