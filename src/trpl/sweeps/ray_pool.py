"""A pool on a Ray cluster: the same process per job, started by a Ray task on any node with a free CPU.

Run folders must be on a path that all nodes share, and `trpl` must be installed on each. Tasks are not retried by Ray:
the sweep decides whether to try a job again.
"""

import logging
import socket
import subprocess
from dataclasses import replace
from typing import Any

from trpl.messages import needs

with needs("ray"):
    import ray
    from ray import exceptions

from trpl.errors import RunError
from trpl.sweeps.jobs import Job, describe_exit, release, start_job


def run_job(values: dict[str, Any]) -> int:
    """Run a job on a node and return its exit code; cancelling the task makes the process save and stop."""
    process = start_job(Job.from_json(values))
    try:
        return process.wait()
    finally:
        release(process)
        process.wait()


class RayPool:
    """Runs jobs as tasks of a Ray cluster, all submitted at once unless `num_workers` limits them."""

    def __init__(self, *, address: str, num_workers: int | None = None):
        self.num_workers = num_workers
        try:
            check_reachable(address)
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, configure_logging=False)
        except (OSError, ValueError, RuntimeError) as error:
            raise RunError(f"no Ray cluster at {address!r}: {error}") from error
        self._task = ray.remote(num_cpus=1, max_retries=0)(run_job)
        self._jobs: dict[ray.ObjectRef, Job] = {}
        self._log_sizes: dict[Job, int] = {}

    def has_room(self) -> bool:
        return self.num_workers is None or len(self._jobs) < self.num_workers

    def start(self, job: Job) -> None:
        self._log_sizes[job] = _size(job)
        shared = replace(job, folder=job.folder.resolve(), compiled=job.compiled.resolve())
        self._jobs[self._task.remote(shared.to_json())] = job

    def running(self) -> set[Job]:
        """List jobs that a node has started: their logs have grown since they were submitted."""
        return {job for job in self._jobs.values() if _size(job) > self._log_sizes[job]}

    def ended(self, *, timeout: float) -> list[tuple[Job, str]]:
        """List ended jobs, each with a failure reason ("" for none), waiting up to `timeout` seconds for the first."""
        if not self._jobs:
            return []
        ready, _ = ray.wait(list(self._jobs), num_returns=1, timeout=timeout)
        return [(self._jobs.pop(reference), _failure(reference)) for reference in ready]

    def stop(self) -> None:
        """Ask every job to save and stop."""
        for reference in self._jobs:
            ray.cancel(reference, force=False)

    def kill(self) -> None:
        """Leave the cluster, which ends this sweep's remaining tasks."""
        ray.shutdown()


def check_reachable(address: str) -> None:
    """Raise OSError unless something answers at host:port; Ray itself takes minutes to notice."""
    host, colon, port = address.rpartition(":")
    if colon and port.isdecimal() and "://" not in address:
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()


def _size(job: Job) -> int:
    return job.log.stat().st_size if job.log.exists() else 0


def _failure(reference: Any) -> str:
    try:
        code = ray.get(reference)
    except (exceptions.NodeDiedError, exceptions.WorkerCrashedError) as error:
        return f"lost its node or worker ({type(error).__name__})"
    except (exceptions.RayError, subprocess.SubprocessError, OSError) as error:
        return f"could not be run ({type(error).__name__}: {str(error).strip().splitlines()[-1]})"
    return describe_exit(int(code))  # type: ignore[arg-type]
