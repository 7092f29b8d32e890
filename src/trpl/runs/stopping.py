"""Asked to stop: SIGTERM and Ctrl-C end the epoch and save, and a fault found elsewhere is raised where it belongs."""

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType


class StopRequest(threading.Event):
    """Set by the first SIGTERM or Ctrl-C."""

    def __init__(self) -> None:
        super().__init__()
        self.fault: Exception | None = None
        self.handled = False  # whether signals reach this request
        self.signal: int | None = None  # the one that asked

    def fail(self, fault: Exception) -> None:
        """Raise `fault` in the main thread, in the middle of what it does; called from another thread."""
        self.fault = fault
        if self.handled:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)


@contextlib.contextmanager
def stop_requests() -> Iterator[StopRequest]:
    """Catch the first SIGTERM or Ctrl-C while a context lasts; a second one interrupts as usual.

    Yields:
        An event that the first one sets, and that knows which signal it was.
    """
    stop = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def request(number: int, _: FrameType | None) -> None:
        if stop.fault is not None:
            raise stop.fault
        stop.signal = stop.signal or number
        stop.set()
        stop.handled = stop.handled and number != signal.SIGTERM  # a second one is no longer ours
        signal.signal(number, before[signal.Signals(number)])

    for number in before:
        signal.signal(number, request)
    stop.handled = True
    try:
        yield stop
    finally:
        stop.handled = False
        for number, handler in before.items():
            signal.signal(number, handler)
