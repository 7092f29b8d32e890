"""A job of a sweep: one run in its folder, done by a process of its own, here or on a node of a cluster.

The process runs what `trpl train` and `trpl resume` run, on one thread, and writes to `log.txt` in the run folder. It
stops, saving, when its standard input is closed, so it never outlives whoever started it. Whether a run is finished is
read from its folder and nowhere else: that is why a sweep can be killed and started again.
"""

import os
import shlex
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trpl.errors import ConfigError, RunError
from trpl.experiments import records
from trpl.experiments.config import NAMES, Config
from trpl.experiments.plan import NO_DIFFERENCE, overrides_of
from trpl.policies.storage import checkpoint_folders

LOG = "log.txt"
THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "NPROC",
)  # XLA's


@dataclass(frozen=True)
class Job:
    """A run to be done: its configuration, its folder, and where compiled code may be kept for runs like it."""

    config: Config
    folder: Path
    compiled: Path

    @property
    def name(self) -> str:
        variant = self.folder.parent.name
        told_apart = "" if variant == self.config.method else f" {variant}"
        return f"{self.config.method}{told_apart} {self.config.env_id} seed {self.config.seed}"

    @property
    def log(self) -> Path:
        return self.folder / LOG

    @property
    def finished(self) -> bool:
        """Whether the checkpoint after the last epoch is there, which is the last thing training writes."""
        newest = next(iter(checkpoint_folders(self.folder)), None)
        return newest is not None and int(newest.name) >= self.config.num_epochs

    def to_json(self) -> dict[str, Any]:
        return {"config": self.config.to_json(), "folder": str(self.folder), "compiled": str(self.compiled)}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> "Job":
        return cls(Config.from_json(values["config"]), Path(values["folder"]), Path(values["compiled"]))


def check_folder(job: Job) -> None:
    """Refuse a folder that holds a run of another configuration, naming the difference."""
    if not (job.folder / records.CONFIG).exists():
        return
    found = records.read_config(job.folder)
    for name in NAMES:
        here, there = getattr(job.config, name), getattr(found, name)
        if here != there and name not in NO_DIFFERENCE:
            raise ConfigError(
                f"{job.folder} holds a run with {name} {there!r}, this sweep wants {here!r}: "
                "give another --out, or remove it"
            )


def in_use(folder: Path) -> bool:
    """Whether some process, on this machine or another that shares the disk, is working on a run."""
    from trpl.experiments.run import locked

    if not (folder / ".lock").exists():
        return False
    try:
        with locked(folder):
            return False
    except RunError:
        return True


def command(job: Job) -> list[str]:
    """The words after `trpl` that start the run, or go on with it."""
    if (job.folder / records.CONFIG).exists():
        return ["resume", str(job.folder)]
    return ["train", job.config.method, job.config.env_id, "--out", str(job.folder), *options(overrides_of(job.config))]


def options(settings: Mapping[str, Any]) -> list[str]:
    """Settings as options of the command line."""
    words = []
    for name, value in settings.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{flag}" if value else f"--no-{flag}")
        elif isinstance(value, tuple | list):
            words += [f"--{flag}", *map(str, value)]
        else:
            words.append(f"--{flag}={'none' if value is None else value}")
    return words


def environment(compiled: Path) -> dict[str, str]:
    """This process's variables, with one thread everywhere and a place for code compiled on this machine.

    Compiling takes seconds and is the same for every seed; a truncated entry is noticed by JAX and compiled again.
    """
    flags = os.environ.get("XLA_FLAGS", "")
    if "xla_cpu_multi_thread_eigen" not in flags:
        flags = f"{flags} --xla_cpu_multi_thread_eigen=false".strip()
    kept = {
        "JAX_COMPILATION_CACHE_DIR": str(compiled / socket.gethostname()),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    return {**os.environ, **dict.fromkeys(THREAD_VARIABLES, "1"), "XLA_FLAGS": flags, **kept}


def start_worker(
    words: list[str], *, log: Path, compiled: Path, variables: Mapping[str, str] | None = None
) -> subprocess.Popen:
    """A process that runs `trpl WORDS` on one thread, output added to `log`; it stops when its input is closed.

    `variables` are added to its environment: what must not stand in a command. It has a session of its own, so that
    Ctrl-C reaches only whoever started it.
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
    """Ask a worker to save and stop."""
    if process.stdin is not None:
        process.stdin.close()


def ended_badly(code: int) -> str:
    """What an exit code says, in words."""
    return f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"


def log_tail(log: Path, *, num_lines: int = 15) -> str:
    """The last lines a job wrote."""
    if not log.exists():
        return "(it wrote no log)"
    with open(log, "rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - 16_384))
        return "\n".join(file.read().decode(errors="replace").splitlines()[-num_lines:])
