"""A job of a sweep: one run in its folder, in a process of its own, here or on a node of a cluster.

The process runs `trpl train` or `trpl resume` on one thread and logs to `log.txt` in the run folder. It saves and stops
when its standard input is closed, so it never outlives the process that started it. Only the run folder says whether a
run is finished, so a sweep can be killed and restarted.
"""

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from trpl.errors import ConfigError
from trpl.methods.registry import config_from_json, plugins
from trpl.policies.storage import checkpoint_folders
from trpl.runs.compiling import cache_variables, one_thread_flags
from trpl.runs.folder import LOG, is_run, read_config
from trpl.settings.config import Config, differing
from trpl.sweeps.plan import overrides_of

K = TypeVar("K")
THREAD_VARIABLES = (
    *("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS"),
    "NPROC",  # XLA's
)


@dataclass(frozen=True)
class Job:
    """A run to be done.

    Args:
        config: Its settings.
        folder: Its run folder.
        compiled: The folder that caches compiled code for similar runs.
        other_versions: Whether to resume it with other library versions than it began with.
    """

    config: Config
    folder: Path
    compiled: Path
    other_versions: bool = False

    @property
    def name(self) -> str:
        variant = self.folder.parent.name
        shown = "" if variant == self.config.method else f" {variant}"
        return f"{self.config.method}{shown} {self.config.env_id} seed {self.config.seed}"

    @property
    def log(self) -> Path:
        return self.folder / LOG

    @property
    def finished(self) -> bool:
        """Whether the checkpoint of the last epoch exists, which training writes last."""
        newest = next(iter(checkpoint_folders(self.folder)), None)
        return newest is not None and int(newest.name) >= self.config.last_epoch

    def to_json(self) -> dict[str, Any]:
        places = {"folder": str(self.folder), "compiled": str(self.compiled)}
        return {"config": self.config.to_json(), **places, "other_versions": self.other_versions}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> "Job":
        folder, compiled = Path(values["folder"]), Path(values["compiled"])
        return cls(config_from_json(values["config"]), folder, compiled, values["other_versions"])


def check_folder(job: Job) -> None:
    """Refuse a folder that holds a run with other settings, naming the first difference."""
    if not is_run(job.folder):
        return
    found = read_config(job.folder)
    for name in differing(job.config, found):
        raise ConfigError(
            f"{job.folder} holds a run with {name} {found.get(name)!r}, this sweep needs {job.config.get(name)!r}: "
            "give another --out, or remove the run"
        )


def command(job: Job) -> list[str]:
    """Return the arguments of `trpl` that start or resume the run."""
    extra = [f"--plugin={word}" for word in plugins()]
    if is_run(job.folder):
        return ["resume", str(job.folder), *(["--other-versions"] if job.other_versions else []), *extra]
    config = job.config
    return ["train", config.method, config.env_id, "--out", str(job.folder), *options(overrides_of(config)), *extra]


def options(settings: Mapping[str, Any]) -> list[str]:
    """Format settings as command-line options.

    Args:
        settings: Settings by name.

    Returns:
        The options.
    """
    words = []
    for name, value in settings.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{flag}" if value else f"--no-{flag}")
        elif isinstance(value, tuple | list):
            words += [f"--{flag}", *map(str, value)]
        elif isinstance(value, Mapping):
            words += [f"--{flag}", *(f"{key}={json.dumps(item)}" for key, item in value.items())] if value else []
        else:
            words.append(f"--{flag}={'none' if value is None else value}")
    return words


def environment(compiled: Path) -> dict[str, str]:
    """Return this process's environment variables, restricted to one thread, with a cache for compiled code.

    As for a single run, a cache that the environment names takes precedence.
    """
    threads = dict.fromkeys(THREAD_VARIABLES, "1")
    return {**cache_variables(compiled), **os.environ, **threads, "XLA_FLAGS": one_thread_flags()}


def start_worker(
    words: list[str], *, log: Path, compiled: Path, variables: Mapping[str, str] | None = None
) -> subprocess.Popen:
    """Start a process that runs `trpl WORDS` on one thread and stops when its standard input is closed.

    It has a session of its own, so that Ctrl-C reaches only the parent.

    Args:
        words: The arguments of `trpl`.
        log: The file to which its output is appended.
        compiled: The folder that caches compiled code.
        variables: Additional environment variables, for secrets that a command line would expose.

    Returns:
        The process.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with open(log, "ab") as out:
        out.write(f"$ trpl {shlex.join(words)}\n".encode())
        out.flush()
        return subprocess.Popen(
            [sys.executable, "-m", "trpl.worker", *words],
            env={**environment(compiled), **(variables or {})},
            stdin=subprocess.PIPE,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def start_job(job: Job) -> subprocess.Popen:
    return start_worker(command(job), log=job.log, compiled=job.compiled)


def release(process: subprocess.Popen) -> None:
    """Ask a worker to save and stop.

    Args:
        process: The worker.
    """
    if process.stdin is not None:
        process.stdin.close()


def describe_exit(code: int) -> str:
    """Describe an exit code as a predicate for the subject "it"; "" for success."""
    if code < 0:
        return f"was killed by signal {-code}"
    return f"ended with exit code {code}" if code else ""


def take_ended(processes: dict[K, subprocess.Popen]) -> list[tuple[K, str]]:
    """Remove the workers that have ended.

    Args:
        processes: The workers; those that have ended are removed.

    Returns:
        The keys of those, each with the reason of its failure, "" for none.
    """
    codes = {key: process.poll() for key, process in processes.items()}
    ended = {key: describe_exit(code) for key, code in codes.items() if code is not None}
    for key in ended:
        release(processes.pop(key))
    return list(ended.items())


def log_tail(log: Path, *, num_lines: int = 15) -> str:
    """Read the last lines of a job's log.

    Args:
        log: The log file.
        num_lines: How many lines.

    Returns:
        The lines.
    """
    if not log.exists():
        return "(it wrote no log)"
    with open(log, "rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - 16_384))
        return "\n".join(file.read().decode(errors="replace").splitlines()[-num_lines:])
