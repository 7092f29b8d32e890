"""A sweep on a real Ray cluster: two nodes on this machine's loopback, one of them killed in the middle."""

import importlib.util
import os
import subprocess
import sys
import time

import pytest

from sweeping import SETTINGS, epochs, finish, plan_file, records_digest, starts, trpl
from trpl.presets import preset
from trpl.runs.run import train

if importlib.util.find_spec("ray") is None:
    pytest.skip("Ray is not installed: pip install 'trpl[ray]'", allow_module_level=True)

NUM_EPOCHS = 300  # some ten seconds, so that a node's death is noticed before its run is done

# A process of its own, since Ray forks and JAX, which other tests have imported here, warns about that. It prints the
# cluster's address, kills the second node when told to, and takes the cluster down when its input ends.
CLUSTER = """
import sys
from ray.cluster_utils import Cluster

node = dict(
    num_cpus=1, num_gpus=0, memory=500_000_000, object_store_memory=80_000_000, include_dashboard=False,
    node_ip_address="127.0.0.2",  # on loopback; Ray takes 127.0.0.1 for the machine's outer address
)
cluster = Cluster(initialize_head=True, head_node_args=node)
doomed = cluster.add_node(**node)
print("address", cluster.address, flush=True)
if sys.stdin.readline():
    cluster.remove_node(doomed, allow_graceful=False)
    print("killed", flush=True)
    sys.stdin.read()
cluster.shutdown()
"""


@pytest.fixture
def cluster():
    process = subprocess.Popen(
        [sys.executable, "-c", CLUSTER],
        env={**os.environ, "RAY_USAGE_STATS_ENABLED": "0"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    yield process
    process.communicate(timeout=60)


def answer(process: subprocess.Popen, word: str) -> str:
    """What the process says after `word`."""
    for line in process.stdout:
        if line.startswith(word):
            return line.removeprefix(word).strip()
    raise AssertionError(f"the cluster ended without {word!r}")


@pytest.mark.stress  # most of a minute, waiting for Ray to notice
def test_a_node_dies_and_the_sweep_goes_on(cluster, tmp_path):
    address = answer(cluster, "address")
    runs = tmp_path / "runs" / "Pendulum-v1" / "ppo-m"
    longer = {"total_steps": 64 * NUM_EPOCHS, "checkpoint_every": 10}
    sweep = trpl("sweep", plan_file(tmp_path / "plan.toml", **longer), "--ray", address, cwd=tmp_path)
    until = time.monotonic() + 120
    while not all((runs / f"seed-{seed}" / "metrics.jsonl").exists() for seed in (0, 1)):  # one on each node
        assert sweep.poll() is None, sweep.communicate()[0]
        assert time.monotonic() < until
        time.sleep(0.05)
    cluster.stdin.write("kill\n")
    cluster.stdin.flush()
    answer(cluster, "killed")
    code, output = finish(sweep)
    assert code == 0, output
    assert "2 runs done, 0 failed" in output
    assert output.count("again   ") <= 1, output  # none where the dead node's process held the folder a little longer
    undisturbed, disturbed = sorted((runs / f"seed-{seed}" for seed in (0, 1)), key=lambda run: len(starts(run)))
    assert (starts(undisturbed), starts(disturbed)) == (["train"], ["train", "resume"])
    for run in (undisturbed, disturbed):
        assert epochs(run) == list(range(1, NUM_EPOCHS + 1))
    settings = {name: tuple(v) if isinstance(v, list) else v for name, v in SETTINGS.items()} | longer
    config = preset("ppo-m", "Pendulum-v1", seed=int(disturbed.name[-1]), **settings)
    train(config, tmp_path / "alone", progress=False)
    assert records_digest(disturbed) == records_digest(tmp_path / "alone")


def test_no_cluster_is_said_in_one_line(tmp_path):
    code, output = finish(trpl("sweep", plan_file(tmp_path / "plan.toml"), "--ray", "127.0.0.1:1", cwd=tmp_path))
    assert code != 0
    assert "no Ray cluster at '127.0.0.1:1'" in output
    assert "Traceback" not in output
