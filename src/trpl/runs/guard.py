"""A small process beside a run that ends it when its environment hangs; started by `watchdog`, imports nothing of trpl.

It lives outside the run because code that never returns to Python, with the interpreter's lock held, stops every thread
of the run, the watching one too. It reads lines from the run:

    +           the run is now inside its environments        -           it is not
    .           a sign of life                                !WORDS      hanging; the last words to say, and soon

Patience is counted in looks, not on a clock: a machine asleep or a run stopped with Ctrl-Z is no hanging environment.
"""

import os
import select
import signal
import sys

NUM_LOOKS = 10  # without a sign of life; the run's own watching thread looks 8 times in the same time
SECONDS_AFTER_LAST_WORDS = 5.0  # for the run to end by itself


def guard(pid: int, *, seconds_per_look: float, words: str) -> None:
    """Kill `pid`, saying `words`, once it has been inside an environment for too long; return when it is gone."""
    inside, looks, starter = False, 0, os.getppid()
    while looks < NUM_LOOKS:
        if os.getppid() != starter:  # gone, though somebody still holds the other end of the pipe
            return
        if not select.select([0], [], [], seconds_per_look)[0]:
            looks += inside
            continue
        read = os.read(0, 65536)
        if not read:
            return
        looks = 0
        for line in read.decode().splitlines():
            inside = line != "-" and (inside or line == "+")
            if line.startswith("!"):
                words = line[1:]
                seconds_per_look = min(seconds_per_look, SECONDS_AFTER_LAST_WORDS / NUM_LOOKS)
    os.write(2, f"\ntrpl: {words}\n".encode())
    os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    guard(int(sys.argv[1]), seconds_per_look=float(sys.argv[2]), words=sys.argv[3])
