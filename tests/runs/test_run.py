"""Runs: the folder, the same bits for the same seed, and going on after any kill."""

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import tiny
from trpl.errors import CheckpointError, ReplayError, RunError
from trpl.policies import load_policy, storage
from trpl.runs import records, trainer
from trpl.runs.evaluate import evaluate_run
from trpl.runs.folder import locked, read_config
from trpl.runs.run import resume, train


class Killed(BaseException):
    """Stands for SIGKILL: nothing may catch it."""


def files(folder):
    return {name: (folder / name).read_bytes() for name in ("metrics.jsonl", "evaluations.jsonl")}


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """An undisturbed run, with two environments and both normalisers."""
    settings = tiny.config(num_envs=2, normalise_rewards=True, reward_clip=10.0)
    return settings, train(settings, tmp_path_factory.mktemp("reference") / "run", progress=False)


def test_folder(reference):
    settings, result = reference
    assert result.finished
    assert result.epochs == 8
    content = json.loads((result.folder / "config.json").read_text())
    assert content["config"] == settings.to_json()
    assert {"versions", "commit", "command", "created"} <= set(content)
    metrics = records.read(result.folder, "metrics.jsonl")
    assert [line["epoch"] for line in metrics] == list(range(1, 9))
    assert [line["steps"] for line in metrics] == [32 * i for i in range(1, 9)]
    assert set(records.METRIC_NAMES) <= set(metrics[0])
    assert metrics[0]["mean_bound"] is None
    evaluations = records.read(result.folder, "evaluations.jsonl")
    assert evaluations[-1]["epoch"] == 8
    assert len(evaluations[-1]["returns"]) == 1
    assert result.final_return == pytest.approx(np.mean([np.mean(line["returns"]) for line in evaluations]))
    timings = records.read(result.folder, "timings.jsonl")
    assert [line["seconds"] for line in timings] == sorted(line["seconds"] for line in timings)
    assert list((result.folder / "tensorboard").iterdir())
    assert read_config(result.folder) == settings


def test_same_seed_same_digest_and_another_another(reference, tmp_path):
    settings, result = reference
    assert train(settings, tmp_path / "again", progress=False).digest == result.digest
    assert train(settings.replace(seed=1), tmp_path / "other", progress=False).digest != result.digest


def test_evaluation_from_the_checkpoint_repeats_the_last_one(reference):
    _, result = reference
    last = records.read(result.folder, "evaluations.jsonl")[-1]
    assert evaluate_run(result.folder).returns.tolist() == last["returns"]
    assert len(evaluate_run(result.folder, num_episodes=3, seed=5).returns) == 3


def test_a_policy_of_another_task_is_refused(reference, tmp_path):
    _, result = reference
    shutil.copytree(result.folder, tmp_path / "run")
    content = json.loads((tmp_path / "run" / "config.json").read_text())
    content["config"]["env_id"] = "Pendulum-v1"
    (tmp_path / "run" / "config.json").write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match=r"2 observations and 2 actions \(Gaussian\); Pendulum-v1 has 3 and 1"):
        evaluate_run(tmp_path / "run")
    with pytest.raises(CheckpointError, match="does not fit the run"):
        resume(tmp_path / "run", progress=False)


def test_loaded_policy_is_the_networks_mean(reference):
    _, result = reference
    assert load_policy(result.folder)(np.zeros(2)).shape == (2,)


@pytest.mark.parametrize("moment", range(24))
def test_killed_anywhere_and_resumed_it_ends_with_the_same_bits(reference, tmp_path, monkeypatch, moment):
    """The kill comes at a random write: in the middle of a line, of a checkpoint, or of the clearing up after one."""
    settings, result = reference
    rng = random.Random(moment)
    left = rng.randrange(1, 90)
    untouched = {
        "append": records.append,
        "flushed": storage.write_flushed,
        "rename": Path.rename,
        "rmtree": storage.shutil.rmtree,
    }

    def count():
        nonlocal left
        left -= 1
        return left == 0

    def append(path, record):
        if count():
            line = json.dumps(record)
            with open(path, "a") as file:
                file.write(line[: rng.randrange(len(line))])
            raise Killed
        untouched["append"](path, record)

    def flushed(path, data):
        if count():
            path.write_bytes(data[: rng.randrange(len(data))])
            raise Killed
        untouched["flushed"](path, data)

    def rename(path, target):
        if count():
            raise Killed
        return untouched["rename"](path, target)

    def rmtree(path, **kwargs):
        if count():
            for file in list(Path(path).glob("*"))[:1]:
                file.unlink()
            raise Killed
        untouched["rmtree"](path, **kwargs)

    with monkeypatch.context() as patched:
        patched.setattr(records, "append", append)
        patched.setattr(storage, "write_flushed", flushed)
        patched.setattr(Path, "rename", rename)
        patched.setattr(storage.shutil, "rmtree", rmtree)
        with contextlib.suppress(Killed):
            train(settings, tmp_path / "run", progress=False)
    again = resume(tmp_path / "run", progress=False)
    assert again.finished
    assert again.digest == result.digest
    assert files(again.folder) == files(result.folder)


@pytest.mark.slow
def test_kill_9_and_sigterm_from_outside(tmp_path):
    """Real signals to a real process, through the command line."""
    folder = tmp_path / "run"
    options = [
        "--steps",
        "2560",
        "--rollout-size",
        "128",
        "--hidden-sizes",
        "4",
        "--eval-episodes",
        "1",
        "--checkpoint-every",
        "2",
    ]
    command = [sys.executable, "-m", "trpl.cli"]
    whole = [*command, "train", "ppo-m", "Pendulum-v1", "--quiet", *options]
    subprocess.run([*whole, "--out", str(tmp_path / "whole")], check=True)

    process = subprocess.Popen([*whole, "--out", str(folder)])
    wait_for_epochs(process, folder, 5)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    process = subprocess.Popen([*command, "resume", str(folder), "--quiet"], stdout=subprocess.PIPE, text=True)
    wait_for_epochs(process, folder, 9)
    os.kill(process.pid, signal.SIGTERM)
    said, _ = process.communicate(timeout=120)
    if not (folder / "learning_curve.png").exists():  # it may have been too quick for the signal
        assert process.returncode == 128 + signal.SIGTERM
        assert f"trpl resume {folder}" in said
    subprocess.run([*command, "resume", str(folder), "--quiet"], check=True)
    assert files(folder) == files(tmp_path / "whole")
    for name in ("policy.safetensors", "state.safetensors"):
        newest = [storage.newest_checkpoint(f) / name for f in (folder, tmp_path / "whole")]
        assert newest[0].read_bytes() == newest[1].read_bytes()


def wait_for_epochs(process, folder, count):
    while process.poll() is None and len(records.read(folder, "metrics.jsonl")) < count:
        time.sleep(0.01)


def test_a_damaged_checkpoint_falls_back_to_the_one_before(reference, tmp_path):
    settings, result = reference
    train(settings, tmp_path / "run", progress=False)
    newest = storage.checkpoint_folders(tmp_path / "run")[0]
    (newest / "state.safetensors").write_bytes(b"")
    with pytest.warns(UserWarning, match=f"{newest.name} is truncated"):
        assert resume(tmp_path / "run", progress=False).digest == result.digest


def test_without_any_sound_checkpoint_resume_refuses(reference, tmp_path):
    settings, _ = reference
    train(settings, tmp_path / "run", progress=False)
    for folder in storage.checkpoint_folders(tmp_path / "run"):
        (folder / "manifest.json").write_text("{}")
    with pytest.raises(CheckpointError, match="no readable manifest"):
        resume(tmp_path / "run", progress=False)


def test_a_folder_holds_one_run_and_one_process(reference, tmp_path):
    settings, result = reference
    with pytest.raises(RunError, match=r"already holds a run.*trpl resume"):
        train(settings, result.folder, progress=False)
    with locked(result.folder), pytest.raises(RunError, match="in use by another process"):
        resume(result.folder, progress=False)
    with pytest.raises(RunError, match="not a run folder"):
        resume(tmp_path, progress=False)


def test_a_finished_run_resumed_changes_nothing(reference):
    _, result = reference
    before = files(result.folder)
    assert resume(result.folder, progress=False).digest == result.digest
    assert files(result.folder) == before


def test_an_environment_that_cannot_be_trained_leaves_no_folder(tmp_path):
    with pytest.raises(ValueError, match="'w2' is for Gaussian policies"):
        train(tiny.config("w2", env_id="CartPole-v1"), tmp_path / "run", progress=False)
    assert not (tmp_path / "run").exists()


def test_events_need_no_pytorch_and_are_purged_from_where_the_run_goes_on(tmp_path):
    code = (
        "import sys; from pathlib import Path; from trpl.runs.events import event_writer;"
        f"w = event_writer(Path({str(tmp_path)!r}), done=64); w.__enter__()(96, {{'kl': 1.0, 'none': None}});"
        "w.__exit__(None, None, None); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    (file,) = (tmp_path / "tensorboard").iterdir()
    assert b"kl" in file.read_bytes()


def test_breakdown_is_reported_with_its_epoch():
    with pytest.raises(RunError, match=r"epoch 3: kl, entropy not finite"):
        trainer.check_finite({"kl": float("nan"), "entropy": float("inf"), "penalty": None}, epoch=3, folder=Path("x"))


@pytest.mark.slow
@pytest.mark.parametrize("method", ["kl", "ppo-m"])
def test_a_point_learns_to_go_home(method, tmp_path):
    """Doing nothing costs 10‖x₀‖² = 20 on average, the best policy 2."""
    bounds = {"mean_bound": 0.1, "cov_bound": 0.01} if method == "kl" else {}
    settings = tiny.config(
        method,
        rollout_size=1000,
        total_steps=40_000,
        minibatch_size=50,
        value_epochs=5,
        policy_epochs=10,
        learning_rate=3e-3,
        learning_rate_vf=3e-3,
        hidden_sizes=(16,),
        hidden_sizes_vf=(16,),
        discount=0.9,
        eval_every=100,
        eval_episodes=10,
        checkpoint_every=100,
        **bounds,
    )
    assert train(settings, tmp_path, progress=False).final_return > -5.0


def test_a_run_stopped_early_is_the_beginning_of_the_whole_one(tmp_path):
    """Schedules are those of the whole budget: the same bits up to where it ends, and resuming adds nothing."""
    settings = tiny.config("ppo", learning_rate_decay=True)
    whole = train(settings, tmp_path / "whole", progress=False)
    early = train(settings.replace(stop_after=150), tmp_path / "early", progress=False)  # five epochs of 32
    assert (whole.epochs, early.epochs, early.finished) == (8, 5, True)
    for name in ("metrics.jsonl", "evaluations.jsonl"):
        assert (whole.folder / name).read_bytes().startswith((early.folder / name).read_bytes())
    assert resume(early.folder, progress=False).epochs == 5


@pytest.mark.parametrize("vectorisation", ["threads"])
def test_runs_on_several_cores_have_the_same_digest(tmp_path, vectorisation):
    plain = train(tiny.config(num_envs=4), tmp_path / "sync", progress=False)
    other = train(tiny.config(num_envs=4, vectorisation=vectorisation), tmp_path / vectorisation, progress=False)
    assert plain.digest == other.digest


def test_an_environment_that_cannot_be_replayed_is_refused_at_the_start(tmp_path, monkeypatch):
    """Not at the first checkpoint, which would lose the epochs before it."""
    monkeypatch.setattr(tiny.Point, "np_random", np.random.RandomState(0), raising=False)
    monkeypatch.setattr(tiny.Point.__mro__[1], "reset", lambda self, *, seed=None, options=None: None)
    with pytest.raises(ReplayError, match=r"so its episodes cannot be replayed.*np_random of gymnasium\.Env"):
        train(tiny.config(), tmp_path / "run", progress=False)
    assert not list(tmp_path.rglob("metrics.jsonl"))
