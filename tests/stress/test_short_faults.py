"""Faults in training, briefly: `python stress/faults.py` does the same at length."""

import pytest


@pytest.fixture(scope="module")
def figures(stressed):
    parts = "kills,disk,environments,signals,second-process"
    return stressed("faults.py", "--only", parts, "--kills", "3", "--disks", "2", "--faults", "raises,hangs,hangs-in-c")


@pytest.mark.slow
@pytest.mark.parametrize("part", ["kills", "environments", "signals", "second-process"])
def test_it_held(figures, part):
    assert figures[part]["held"] is True, figures[part]


@pytest.mark.slow
def test_some_kills_landed_inside_a_checkpoint_write(figures):
    assert figures["kills"]["inside a checkpoint write"] >= 1
    assert figures["kills"]["same to the bit"]


@pytest.mark.slow
def test_a_full_disk(figures):
    if figures["disk"]["held"] is None:
        pytest.skip(figures["disk"]["why"])
    assert figures["disk"]["held"], figures["disk"]
