"""A pool of processes on this machine."""

import subprocess
import time

from trpl.sweeps.jobs import Job, release, start_job, take_ended

POLL_SECONDS = 0.05


class LocalPool:
    """Runs jobs as processes of this machine."""

    def __init__(self, *, num_workers: int):
        self.num_workers = num_workers
        self._processes: dict[Job, subprocess.Popen] = {}

    def has_room(self) -> bool:
        return len(self._processes) < self.num_workers

    def start(self, job: Job) -> None:
        self._processes[job] = start_job(job)

    def running(self) -> set[Job]:
        return set(self._processes)

    def ended(self, *, timeout: float) -> list[tuple[Job, str]]:
        """List ended jobs, each with a failure reason ("" for none), waiting up to `timeout` seconds for the first."""
        until = time.monotonic() + timeout
        while not (found := take_ended(self._processes)) and self._processes and time.monotonic() < until:
            time.sleep(POLL_SECONDS)
        return found

    def stop(self) -> None:
        """Ask every job to save and stop."""
        for process in self._processes.values():
            release(process)

    def kill(self) -> None:
        for process in self._processes.values():
            process.kill()
            process.wait()
