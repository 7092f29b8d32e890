"""The shapes in the annotations of the maths are true."""

import subprocess
import sys
from pathlib import Path


def test_shapes_at_run_time():
    """Every function of the maths checks the shapes of its arguments and results while all projections run."""
    script = Path(__file__).with_name("typed.py")
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    assert int(done.stdout.split()[0]) > 100


def test_users_pay_nothing():
    """Without `jaxtyping` the aliases are `Any`, and neither it nor `beartype` is loaded."""
    code = "import sys, typing, trpl, trpl.types as t; print(t.Vector is typing.Any, 'jaxtyping' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "False"]
