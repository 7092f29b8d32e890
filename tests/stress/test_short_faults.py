"""Faults in training, briefly: `python stress/faults.py` does the same at length, and has more kinds of them.

Hanging environments, signals and a second process on a folder: test_watchdog, test_going_on, test_run in tests/runs.
"""

import pytest


@pytest.fixture(scope="module")
def figures(stressed):
    return stressed("faults.py", "--only", "kills,disk", "--kills", "3", "--disks", "1")


@pytest.mark.slow
def test_killed_runs_go_on(figures):
    assert figures["kills"]["held"] is True, figures["kills"]


@pytest.mark.slow
def test_some_kills_landed_inside_a_checkpoint_write(figures):
    assert figures["kills"]["inside a checkpoint write"] >= 1
    assert figures["kills"]["same to the bit"]


@pytest.mark.slow
def test_a_full_disk(figures):
    if figures["disk"]["held"] is None:
        pytest.skip(figures["disk"]["why"])
    assert figures["disk"]["held"], figures["disk"]
