"""The programs in stress/, run briefly, each in a process of its own: they fork, as no process with JAX at work may."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

STRESS = Path(__file__).parents[2] / "stress"


@pytest.fixture(scope="session")
def stressed(tmp_path_factory):
    """A function that runs a stress program and gives its figures."""

    def run(program: str, *words: str) -> dict:
        out = tmp_path_factory.mktemp("stress") / "figures.json"
        done = subprocess.run(
            [sys.executable, str(STRESS / program), *words, "--out", str(out)],
            capture_output=True,
            text=True,
            timeout=600,
        )
        assert out.exists(), done.stderr
        return json.loads(out.read_text())

    return run
