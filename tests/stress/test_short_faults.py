"""Faults in training, briefly: `python stress/faults.py` does the same at length, and has more kinds of them.

Hanging environments, signals, kills and a second process on a folder: test_watchdog, test_going_on, test_run in
tests/runs, which kills a run at each of its writes, and from outside.
"""

import pytest


@pytest.mark.stress
def test_killed_runs_go_on(stressed):
    figures = stressed("faults.py", "--only", "kills", "--kills", "3")["kills"]
    assert figures["held"] is True, figures
    assert figures["inside a checkpoint write"] >= 1
    assert figures["same to the bit"]


@pytest.mark.stress
def test_a_full_disk(stressed):
    figures = stressed("faults.py", "--only", "disk", "--disks", "1")["disk"]
    if figures["held"] is None:
        pytest.skip(figures["why"])
    assert figures["held"], figures
