"""Processes to be killed: `trpl` commands in forks of this one, which has imported everything and computed nothing.

A restart then takes a second or two instead of five, and two hundred of them a quarter of an hour. This module must be
imported before JAX: it settles threads and where compiled code is kept.
"""

import contextlib
import os
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

STRESS = Path(__file__).parent
TINY = {
    "rollout_size": 32, "minibatch_size": 16, "policy_epochs": 1, "value_epochs": 1, "hidden_sizes": (4,),
    "hidden_sizes_vf": (4,), "eval_every": 3, "eval_episodes": 1, "checkpoint_every": 2,
}  # fmt: skip


class Ended(NamedTuple):
    code: int  # negative: killed by that signal
    said: str


def prepare(compiled: Path) -> None:
    """One thread, compiled code kept in `compiled`, and all imports done; nothing may be computed here after that."""
    threads = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NPROC")
    os.environ.update(dict.fromkeys(threads, "1"))
    os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false"
    os.environ["JAX_COMPILATION_CACHE_DIR"] = str(compiled)
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    os.environ.pop("TRPL_TRACEBACK", None)
    sys.path.insert(0, str(STRESS))
    warnings.filterwarnings("ignore", message=".*os.fork.*")
    import troubles  # noqa: F401  (registers the environments)


class Child:
    """A `trpl` command at work."""

    def __init__(self, *words: str, log: Path):
        self.log = log
        sys.stdout.flush()
        self.pid = os.fork()
        if self.pid == 0:
            self._run([str(word) for word in words])

    def _run(self, words: list[str]) -> None:
        code = 70  # what a traceback ends with
        try:
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
            file = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(file, 1)
            os.dup2(file, 2)
            from trpl import cli

            sys.stdout = os.fdopen(1, "w", closefd=False)
            sys.stderr = os.fdopen(2, "w", closefd=False)
            code = cli.main(words)
            sys.stdout.flush()
            sys.stderr.flush()
        except BaseException:
            os.write(2, traceback.format_exc().encode())
        finally:
            os._exit(code)

    def running(self) -> bool:
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None

    def kill(self, number: int = signal.SIGKILL) -> None:
        os.kill(self.pid, number)

    def wait(self, *, seconds: float = 300.0) -> Ended:
        """How it ended; one that does not end in time is killed, which no test takes for a good end."""
        until = time.monotonic() + seconds
        while self.running():
            if time.monotonic() > until:
                self.kill()
                os.waitpid(self.pid, 0)
                return Ended(-99, f"did not end in {seconds:g} s")
            time.sleep(0.005)
        _, status = os.waitpid(self.pid, 0)
        return Ended(os.waitstatus_to_exitcode(status), self.log.read_text(errors="replace"))

    def wait_until(self, condition: Callable[[], bool], *, seconds: float = 300.0, between: float = 0.001) -> bool:
        """Whether `condition` came true before the end."""
        until = time.monotonic() + seconds
        while self.running() and time.monotonic() < until:
            if condition():
                return True
            time.sleep(between)
        return False


def train_words(
    folder: Path, *, env_id: str = "troubles:point-v0", method: str = "ppo-m", **settings: object
) -> list[str]:
    """The words of a tiny run; a setting that is True is a switch, and one that is None is left out."""
    words = ["train", method, env_id, "--out", str(folder), "--quiet"]
    for name, value in (TINY | settings).items():
        values = value if isinstance(value, tuple) else () if value is True else (value,)
        words += [] if value is None else [f"--{name.replace('_', '-')}", *map(str, values)]
    return words


def epochs_done(folder: Path) -> int:
    with contextlib.suppress(FileNotFoundError):
        return (folder / "timings.jsonl").read_bytes().count(b"\n")
    return 0


def outcome(folder: Path) -> dict[str, bytes]:
    """What two runs alike have in common, to the bit: records, and the weights and state of the newest checkpoint."""
    from trpl.policies.storage import newest_checkpoint

    newest = newest_checkpoint(folder)
    files = [folder / "metrics.jsonl", folder / "evaluations.jsonl", *newest.glob("*.safetensors")]
    return {f"{file.parent.name if file.parent == newest else ''}{file.name}": file.read_bytes() for file in files}


@contextlib.contextmanager
def small_disk(folder: Path, *, size_kb: int) -> Iterator[Callable[[int], None]]:
    """A disk of that size at `folder`, and a function that resizes it; OSError where mounting is not permitted."""
    import subprocess

    folder.mkdir(parents=True)

    def mount(*options: str) -> None:
        done = subprocess.run(["mount", *options, str(folder)], capture_output=True, text=True)
        if done.returncode:
            raise OSError(f"no small disk can be mounted here: {done.stderr.strip()}")

    try:
        mount("-t", "tmpfs", "-o", f"size={size_kb}k", "tmpfs")
    except FileNotFoundError as error:
        raise OSError("no small disk can be mounted here: there is no mount command") from error
    try:
        yield lambda kb: mount("-o", f"remount,size={kb}k")
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=False)
