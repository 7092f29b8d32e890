"""`python -m trpl.worker COMMAND ...`: the command line, ended together with the process that started it.

The parent keeps the other end of standard input and never writes to it. When that end is closed, deliberately or
because the parent died, this process gets SIGTERM: a run then ends its epoch, saves and stops.
"""

import os
import signal
import sys
import threading

from trpl import cli


def stop_with_input() -> None:
    while os.read(sys.stdin.fileno(), 1024):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    threading.Thread(target=stop_with_input, daemon=True).start()
    sys.argv[0] = "trpl"  # for the command in the run's record
    sys.exit(cli.main())
