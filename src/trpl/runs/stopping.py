"""Stop requests: SIGTERM and Ctrl-C end the epoch and save; a fault in another thread is raised in the main one."""

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
        self.signal: int | None = None  # the first one

    def fail(self, fault: Exception) -> None:
        """Raise `fault` in the main thread, interrupting it; called from another thread."""
        self.fault = fault
        if self.handled:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)


@contextlib.contextmanager
def stop_requests() -> Iterator[StopRequest]:
    """Catch the first SIGTERM or Ctrl-C inside the context; a second one has its usual effect.

    Yields:
        An event that the first one sets, with the signal's number.
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
        if number == signal.SIGTERM:
            stop.handled = False  # the previous handler, which is restored here, would take the SIGTERM of `fail`
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
