"""Sweeps of runs that take a second each, started as a user starts them."""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

SETTINGS = {
    "total_steps": 64 * 6,
    "rollout_size": 64,
    "minibatch_size": 32,
    "policy_epochs": 1,
    "value_epochs": 1,
    "hidden_sizes": [8],
    "hidden_sizes_vf": [8],
    "eval_episodes": 1,
    "checkpoint_every": 1,
}


def plan_file(path: Path, *, methods=("ppo-m",), tasks=("Pendulum-v1",), seeds=2, extra="", **settings) -> Path:
    lines = [
        f"methods = {json.dumps(list(methods))}",
        f"tasks = {json.dumps(list(tasks))}",
        f"seeds = {json.dumps(seeds)}",
    ]
    lines += [
        "[settings]",
        *(f"{name} = {json.dumps(value)}" for name, value in {**SETTINGS, **settings}.items()),
        extra,
    ]
    path.write_text("\n".join(lines) + "\n")
    return path


def trpl(*words: str | Path, cwd: Path, **variables: str) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-m", "trpl.cli", *map(str, words)],
        cwd=cwd,
        env={**os.environ, "OMP_NUM_THREADS": "1", **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finish(process: subprocess.Popen, *, timeout: float = 240) -> tuple[int, str]:
    try:
        output, _ = process.communicate(timeout=timeout)
    finally:
        process.kill()
    return process.returncode, output


def epochs(run: Path, name: str = "metrics.jsonl") -> list[int]:
    return [json.loads(line)["epoch"] for line in (run / name).read_text().splitlines()]


def records_digest(run: Path) -> str:
    """Of everything in the records that must not depend on how often the run was stopped."""
    return hashlib.sha256((run / "metrics.jsonl").read_bytes() + (run / "evaluations.jsonl").read_bytes()).hexdigest()


def starts(run: Path) -> list[str]:
    """The commands a run's worker was given: `train` or `resume`, in order."""
    return [line.split()[2] for line in (run / "log.txt").read_text().splitlines() if line.startswith("$ trpl ")]
