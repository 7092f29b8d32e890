"""Jobs that must not outlive what started them, and checkpoints of another network."""

import subprocess
import sys
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest

import tiny
from trpl.errors import CheckpointError
from trpl.runs.checkpoints import learner_arrays, learner_state
from trpl.sweeps.jobs import Job
from trpl.sweeps.local_pool import LocalPool
from trpl.sweeps.sweep import Sweep


def test_killed_jobs_are_gone():
    pool = LocalPool(num_workers=2)
    command = [sys.executable, "-c", "import time; time.sleep(600)"]
    processes = [subprocess.Popen(command, stdin=subprocess.PIPE) for _ in range(2)]
    pool._processes = dict(zip(("one", "other"), processes, strict=True))
    assert not pool.has_room()
    pool.kill()
    assert all(process.returncode == -9 for process in processes)
    for process in processes:
        process.stdin.close()


def test_an_error_in_a_sweep_leaves_no_job_behind(tmp_path):
    killed = []

    def fail(*, timeout):
        raise OSError("no space left")

    pool = SimpleNamespace(has_room=lambda: False, ended=fail, kill=lambda: killed.append(True))
    job = Job(tiny.config(), folder=tmp_path / "run", compiled=tmp_path)
    with pytest.raises(OSError, match="no space left"):
        Sweep([job], pool=pool, table=None, out=tmp_path, results=None).run()
    assert killed == [True]


def test_a_checkpoint_of_another_network_is_refused(tmp_path):
    state = {"weight": jnp.ones((2, 3)), "bias": jnp.zeros(3)}
    arrays = learner_arrays(state)
    found = learner_state(arrays, like=state, where=tmp_path)
    assert all((found[name] == state[name]).all() for name in state)
    wider, renamed = state | {"weight": jnp.ones((2, 4))}, {"weights": state["weight"]}
    other_type = state | {"bias": jnp.zeros(3, np.int32)}
    for like, name in ((wider, "weight"), (renamed, "weights"), (other_type, "bias")):
        with pytest.raises(CheckpointError, match=rf"does not fit the run's configuration: .*'{name}'.* is missing"):
            learner_state(arrays, like=like, where=tmp_path)
