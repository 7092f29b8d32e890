"""A time-out for environments that costs nothing per step.

A thread polls the environments' step counters a few times per time-out. If they stand still for that long inside an
environment, the run is interrupted with an error that says where. If that has no effect, because native code does not
return to Python, the `guard` process kills the run. Checkpoints are written atomically, so the last one is intact
either way.
"""

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from trpl.errors import FaultyEnvironmentError
from trpl.rollouts import Environment
from trpl.runs import guard
from trpl.runs.resuming import resume_command

NUM_POLLS = 8  # per time-out


class Watchdog:
    """Watches the thread that makes it, which has to be the main thread: only that can be interrupted.

    `seconds` None disables it. `interrupt`, if set, is called with the error to raise in the watched thread.
    """

    def __init__(self, *, seconds: float | None, env_id: str, folder: Path):
        self.seconds, self.env_id, self.folder = seconds, env_id, folder
        self.interrupt: Callable[[Exception], None] | None = None
        self._thread_id = threading.get_ident()
        self._position: Callable[[], Any] | None = None
        self._ended = threading.Event()
        self._guard: subprocess.Popen | None = None
        self._pipe = -1
        self._thread: threading.Thread | None = None

    def __enter__(self) -> "Watchdog":
        if self.seconds is None or threading.current_thread() is not threading.main_thread():
            return self
        words = self._words(self.env_id, "in code that does not return to Python; the run was ended by force")
        words = f"{words}. {self._saved}"
        command = [sys.executable, "-I", "-S", guard.__file__, str(os.getpid()), str(self.seconds / NUM_POLLS), words]
        with _blocked_signals():  # the guard inherits the mask: Ctrl-C is for the run
            self._guard = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
        self._pipe = self._guard.stdin.fileno() if self._guard.stdin is not None else -1
        os.set_blocking(self._pipe, False)
        self._thread = threading.Thread(target=self._watch, daemon=True, name="trpl-watchdog")
        self._thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._ended.set()
        if self._thread is not None and self._guard is not None:
            self._thread.join()
            self._guard.kill()
            self._guard.communicate()

    @contextlib.contextmanager
    def watching(self, position: Callable[[], Any] = lambda: 0) -> Iterator[None]:
        """Require that `position()` changes at least every `seconds` inside the context.

        Without a position the whole context may take `seconds`.
        """
        self._position = position
        self._tell("+")
        try:
            yield
        finally:
            self._position = None
            self._tell("-")

    def _watch(self) -> None:
        assert self.seconds is not None
        before, polls = None, 0
        while not self._ended.wait(self.seconds / NUM_POLLS):
            position = self._position
            now = position() if position is not None else None
            polls = polls + 1 if now is not None and now == before else 0
            before = now
            if polls < NUM_POLLS:
                self._tell(".")
            elif polls == NUM_POLLS:
                self._end()

    def _end(self) -> None:
        """Tell the guard what hangs where, and interrupt it."""
        frames = sys._current_frames()
        watched = frames.pop(self._thread_id, None)
        found = ((frame, _environment(frame)) for frame in (watched, *frames.values()))  # or it waits for a helper
        innermost, hanging = next((pair for pair in found if pair[1] is not None), (watched, None))
        where = self.env_id if hanging is None else hanging.where()
        line = f"{Path(innermost.f_code.co_filename).name}, line {innermost.f_lineno}" if innermost else "unknown code"
        words = self._words(where, f"in {line}")
        self._tell("!" + f"{words}. {self._saved}".replace("\n", " "))
        if self.interrupt is not None:
            self.interrupt(FaultyEnvironmentError(words))

    def _words(self, where: str, how: str) -> str:
        return (
            f"{where} has not answered for {self.seconds:g} s, {how} (if steps may take longer, set --env-timeout"
            " SECONDS, or none)"
        )

    @property
    def _saved(self) -> str:
        return f"What was saved is intact: continue with `{resume_command(self.folder, env_id=self.env_id)}`"

    def _tell(self, line: str) -> None:
        if self._guard is not None:
            with contextlib.suppress(OSError, ValueError):  # without the guard the thread still watches
                os.write(self._pipe, f"{line}\n".encode())


def _environment(frame: FrameType | None) -> Environment | None:
    """Return the environment whose method a frame or one of its callers runs."""
    while frame is not None:
        owner = frame.f_locals.get("self")
        if isinstance(owner, Environment):
            return owner
        frame = frame.f_back
    return None


@contextlib.contextmanager
def _blocked_signals() -> Iterator[None]:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
