"""A sweep on a real Ray cluster: two nodes on this machine's loopback, one of them killed in the middle."""

import time

import pytest
from sweeping import SETTINGS, epochs, finish, plan_file, records_digest, starts, trpl

from trpl.experiments.presets import preset
from trpl.experiments.run import train

pytest.importorskip("ray", reason="Ray is not installed: pip install 'trpl[ray]'")

NODE = {
    "num_cpus": 1,
    "num_gpus": 0,
    "memory": 500_000_000,
    "object_store_memory": 80_000_000,
    "include_dashboard": False,
    "node_ip_address": "127.0.0.2",  # on loopback; Ray takes 127.0.0.1 for the machine's outer address
}


@pytest.fixture
def cluster(monkeypatch):
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setenv("RAY_enable_metrics_collection", "0")
    cluster = Cluster(initialize_head=True, head_node_args=NODE)
    yield cluster
    cluster.shutdown()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning", "ignore::FutureWarning")
def test_a_node_dies_and_the_sweep_goes_on(cluster, tmp_path):
    doomed = cluster.add_node(**NODE)
    runs = tmp_path / "runs" / "Pendulum-v1" / "ppo-m"
    sweep = trpl(
        "sweep", plan_file(tmp_path / "plan.toml", total_steps=64 * 40), "--ray", cluster.address, cwd=tmp_path
    )
    until = time.monotonic() + 120
    while not all((runs / f"seed-{seed}" / "metrics.jsonl").exists() for seed in (0, 1)):  # one on each node
        assert sweep.poll() is None, sweep.communicate()[0]
        assert time.monotonic() < until
        time.sleep(0.05)
    cluster.remove_node(doomed, allow_graceful=False)
    code, output = finish(sweep)
    assert code == 0, output
    assert "2 runs done, 0 failed" in output
    assert output.count("again   ") == 1, output
    assert sorted(starts(runs / f"seed-{seed}") for seed in (0, 1)) == [["train"], ["train", "resume"]]
    settings = {name: tuple(v) if isinstance(v, list) else v for name, v in SETTINGS.items()} | {"total_steps": 64 * 40}
    for seed in (0, 1):
        assert epochs(runs / f"seed-{seed}") == list(range(1, 41))
        train(preset("ppo-m", "Pendulum-v1", seed=seed, **settings), tmp_path / f"alone-{seed}", progress=False)
        assert records_digest(runs / f"seed-{seed}") == records_digest(tmp_path / f"alone-{seed}")


def test_no_cluster_is_said_in_one_line(tmp_path):
    code, output = finish(trpl("sweep", plan_file(tmp_path / "plan.toml"), "--ray", "127.0.0.1:1", cwd=tmp_path))
    assert code != 0
    assert "no Ray cluster at '127.0.0.1:1'" in output
    assert "Traceback" not in output
