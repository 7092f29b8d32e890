"""Sweeps as a user meets them: started, killed, stopped, crashed and shared; every run done exactly once."""

import random
import signal
import time
from pathlib import Path

import pytest

from sweeping import SETTINGS, epochs, finish, plan_file, records_digest, starts, trpl
from trpl.policies.storage import checkpoint_folders
from trpl.runs.folder import in_use
from trpl.sweeps import sweep
from trpl.sweeps.jobs import options

RUNS = Path("runs/Pendulum-v1/ppo-m")
NUM_EPOCHS = SETTINGS["total_steps"] // SETTINGS["rollout_size"]

# Two tasks that kill their process in the third rollout: always, or the first time only.
TASKS = """
import os, signal
from pathlib import Path
import gymnasium as gym
from gymnasium.envs.classic_control import PendulumEnv

class Deadly(PendulumEnv):
    num_steps = 0
    def step(self, action):
        self.num_steps += 1
        died = Path(os.environ["DIED"] + type(self).__name__)
        if self.num_steps > 150 and (self.always or not died.exists()):
            died.touch()
            print("about to die", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        return super().step(action)

class Flaky(Deadly):
    always = False

class Broken(Deadly):
    always = True

gym.register("Flaky-v0", entry_point=Flaky, max_episode_steps=200)
gym.register("Broken-v0", entry_point=Broken, max_episode_steps=200)
"""


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """A sweep that is never stopped: what the others are compared with."""
    folder = tmp_path_factory.mktemp("undisturbed")
    code, output = finish(trpl("sweep", plan_file(folder / "plan.toml", seeds=3), "--workers", "2", cwd=folder))
    assert code == 0, output
    return folder


def test_results_that_cannot_be_written_are_refused_before_a_run_starts(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setattr(sweep, "make_pool", lambda **_: pytest.fail("it started"))
    with pytest.raises(NotADirectoryError):
        sweep.sweep([], out=tmp_path, results=tmp_path / "file" / "results")


def assert_done_once(folder: Path, undisturbed: Path, num_runs: int) -> None:
    runs = sorted((folder / RUNS).glob("seed-*"))
    assert len(runs) == num_runs
    for run in runs:
        for name in ("metrics.jsonl", "evaluations.jsonl", "timings.jsonl"):
            assert epochs(run, name) == list(range(1, NUM_EPOCHS + 1)), (run, name)
        assert records_digest(run) == records_digest(undisturbed / RUNS / run.name)
        before, _, after = (run / "log.txt").read_text().partition(f"finished {NUM_EPOCHS} epochs")
        assert "$ trpl" not in after, run  # once finished, nobody touched it again
        assert before.startswith("$ trpl train")


def test_a_job_is_what_train_does(undisturbed, tmp_path):
    words = ["ppo-m", "Pendulum-v1", "--seed=1", *options(SETTINGS), "--out", "run"]
    code, output = finish(trpl("train", *words, cwd=tmp_path))
    assert code == 0, output
    assert records_digest(tmp_path / "run") == records_digest(undisturbed / RUNS / "seed-1")
    assert (undisturbed / RUNS / "seed-1" / "learning_curve.png").exists()


def test_killed_again_and_again_each_run_is_done_once(tmp_path, undisturbed):
    plan = plan_file(tmp_path / "plan.toml", seeds=3)
    for num_epochs in sorted(random.Random(3).sample(range(3 * NUM_EPOCHS), k=2)):  # of all runs together
        sweep = trpl("sweep", plan, "--workers", "2", cwd=tmp_path)
        wait_for(lambda n=num_epochs: epochs_so_far(tmp_path) >= n and list(tmp_path.glob(f"{RUNS}/*/log.txt")))
        sweep.send_signal(signal.SIGKILL)
        finish(sweep)
    code, output = finish(trpl("sweep", plan, "--workers", "2", cwd=tmp_path))
    assert code == 0, output
    assert_done_once(tmp_path, undisturbed, num_runs=3)


def epochs_so_far(tmp_path: Path) -> int:
    return sum(len(path.read_text().splitlines()) for path in tmp_path.glob(f"{RUNS}/*/metrics.jsonl"))


def test_killed_workers_save_and_the_next_sweep_goes_on(tmp_path, undisturbed):
    plan = plan_file(tmp_path / "plan.toml", seeds=4)
    sweep = trpl("sweep", plan, "--workers", "2", "--total-steps", "64000", cwd=tmp_path)
    run = tmp_path / RUNS / "seed-0"
    wait_for(lambda: len(checkpoint_folders(run)) > 0)
    sweep.send_signal(signal.SIGKILL)
    finish(sweep)
    wait_for(lambda: not in_use(run))
    assert int(checkpoint_folders(run)[0].name) == epochs(run)[-1]  # nothing was lost
    code, output = finish(trpl("sweep", plan, "--workers", "2", cwd=tmp_path))  # another budget: not the same run
    assert code == 2
    assert "total_steps 64000, this sweep needs 384" in output


def test_stopped_by_ctrl_c_and_started_again(tmp_path, undisturbed):
    plan = plan_file(tmp_path / "plan.toml", seeds=3)
    sweep = trpl("sweep", plan, "--workers", "2", cwd=tmp_path)
    wait_for(lambda: checkpoint_folders(tmp_path / RUNS / "seed-0") and checkpoint_folders(tmp_path / RUNS / "seed-1"))
    sweep.send_signal(signal.SIGINT)
    code, output = finish(sweep)
    assert code == 130, output
    assert "the same command continues" in output
    for run in (tmp_path / RUNS).glob("seed-*/metrics.jsonl"):
        assert int(checkpoint_folders(run.parent)[0].name) == epochs(run.parent)[-1]
    code, output = finish(trpl("sweep", plan, "--workers", "2", cwd=tmp_path))
    assert code == 0, output
    assert_done_once(tmp_path, undisturbed, num_runs=3)


def test_two_sweeps_share_the_work(tmp_path, undisturbed):
    plan = plan_file(tmp_path / "plan.toml", seeds=3)
    both = [trpl("sweep", plan, "--workers", "1", "--results", "results", cwd=tmp_path) for _ in range(2)]
    for code, output in map(finish, both):
        assert code == 0, output
        assert "3 runs done, 0 failed" in output
    assert_done_once(tmp_path, undisturbed, num_runs=3)
    counts = [len(starts(tmp_path / RUNS / f"seed-{seed}")) for seed in range(3)]
    assert max(counts) <= 2  # 2: both began at the same moment
    assert sorted(path.name for path in (tmp_path / "results/Pendulum-v1/ppo-m").iterdir()) == [
        "seed-0",
        "seed-1",
        "seed-2",
    ]


def test_crashes_are_tried_again_once_and_reported(tmp_path):
    (tmp_path / "deadly.py").write_text(TASKS)
    plan = plan_file(tmp_path / "plan.toml", tasks=("deadly:Broken-v0", "Pendulum-v1", "deadly:Flaky-v0"), seeds=1)
    sweep = trpl("sweep", plan, "--workers", "2", cwd=tmp_path, PYTHONPATH=str(tmp_path), DIED=str(tmp_path / "died"))
    code, output = finish(sweep)
    assert code == 1
    assert "2 runs done, 1 failed" in output
    log = Path("runs/deadly:Broken-v0/ppo-m/seed-0/log.txt")
    assert f"was killed by signal 9; the end of {log}:" in output
    assert "  | about to die" in output
    broken, flaky = ((tmp_path / f"runs/deadly:{name}-v0/ppo-m/seed-0") for name in ("Broken", "Flaky"))
    assert starts(broken) == ["train", "resume"]
    assert starts(flaky) == ["train", "resume"]
    assert epochs(flaky) == list(range(1, NUM_EPOCHS + 1))


def wait_for(condition, *, timeout: float = 120.0) -> None:
    until = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < until, "it did not happen"
        time.sleep(0.05)
