"""A process that kills a run whose environment hangs; started by `watchdog`, imports nothing of trpl.

It is outside the run because native code that holds the interpreter lock stops every thread of the run, including the
watching one. It reads lines from the run:

    +           the run is now inside its environments        -           it is not
    .           heartbeat                                     !WORDS      hung: the message to print when killing it

The time-out counts polls, not seconds, so that suspending the machine or stopping the run with Ctrl-Z does not count.
"""

import os
import select
import signal
import sys

NUM_POLLS = 10  # without a heartbeat; the run's own watching thread polls 8 times in the same time
SECONDS_AFTER_MESSAGE = 5.0  # for the run to end by itself


def guard(pid: int, *, seconds_per_poll: float, words: str) -> None:
    """Kill `pid`, printing `words`, once it has been inside an environment for too long; return when it has exited."""
    inside, polls, starter = False, 0, os.getppid()
    while polls < NUM_POLLS:
        if os.getppid() != starter:  # exited, although another process still holds the other end of the pipe
            return
        if not select.select([0], [], [], seconds_per_poll)[0]:
            polls += inside
            continue
        read = os.read(0, 65536)
        if not read:
            return
        polls = 0
        for line in read.decode().splitlines():
            inside = line != "-" and (inside or line == "+")
            if line.startswith("!"):
                words = line[1:]
                seconds_per_poll = min(seconds_per_poll, SECONDS_AFTER_MESSAGE / NUM_POLLS)
    os.write(2, f"\ntrpl: {words}\n".encode())
    os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    guard(int(sys.argv[1]), seconds_per_poll=float(sys.argv[2]), words=sys.argv[3])
