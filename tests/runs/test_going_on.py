"""Going on: with other versions, for longer, from another run, from the best checkpoint; and how a run is stopped."""

import json
import shutil
import signal
import time
from typing import NamedTuple

import numpy as np
import pytest

import tiny
from sweeping import finish, trpl
from trpl.algorithms.learner import LearnerState
from trpl.cli import main
from trpl.errors import CheckpointError, ConfigError, RunError
from trpl.policies import load_policy
from trpl.policies.storage import checkpoint_folders
from trpl.runs import checkpoints, folder, records
from trpl.runs.evaluate import evaluate_run
from trpl.runs.run import resume, train


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    settings = tiny.config(eval_every=1)
    return settings, train(settings, tmp_path_factory.mktemp("going") / "run", progress=False)


def half_done(tmp_path, **settings):
    """A run that was stopped after its fourth epoch."""
    config = tiny.config(checkpoint_every=2, **settings)
    result = train(config, tmp_path / "run", progress=False, callbacks=[lambda steps, _: steps < 4 * 32])
    assert (result.finished, result.epochs) == (False, 4)
    return config, result


def test_a_papi_checkpoint_of_version_0_2_is_read(tmp_path):
    """There the learner's state was a field of PAPI's."""

    class PapiState(NamedTuple):
        learner: LearnerState
        learning_rate_factor: np.float32

    weights = {"w": np.arange(3.0, dtype=np.float32)}
    learner = LearnerState(weights, weights, weights, weights, np.float32(1.0), np.int32(2))
    arrays = checkpoints.learner_arrays(PapiState(learner, np.float32(0.8)))
    like = learner._replace(learning_rate_factor=np.float32(1.0))
    found = checkpoints.learner_state(arrays, like=like, where=tmp_path)
    assert found.learning_rate_factor == np.float32(0.8)
    assert (found.epoch, *found.policy["w"]) == (2, 0.0, 1.0, 2.0)


def test_other_versions_are_refused_and_recorded(tmp_path, monkeypatch):
    _, result = half_done(tmp_path)
    before = folder.versions()
    monkeypatch.setattr(folder, "versions", lambda: before | {"numpy": "9.9", "jax": before["jax"]})
    with pytest.raises(RunError, match=rf"numpy {before['numpy']} is now 9\.9\. .*--other-versions"):
        resume(result.folder, progress=False)
    assert resume(result.folder, progress=False, other_versions=True).finished
    stretches = json.loads((result.folder / "config.json").read_text())["stretches"]
    assert [(part["after_epoch"], part["versions"]["numpy"]) for part in stretches] == [
        (0, before["numpy"]),
        (4, "9.9"),
    ]
    assert all(part["host"] for part in stretches)
    monkeypatch.undo()
    assert resume(result.folder, progress=False).finished  # nothing is left to compute, so nothing can differ


def test_another_processor_is_noted_and_recorded(tmp_path, monkeypatch, capsys):
    _, result = half_done(tmp_path)
    before = folder.processor()
    monkeypatch.setattr(folder, "processor", lambda: "Abacus 3")
    assert main(["resume", str(result.folder)]) == 0
    assert f"note: the run was computed on another processor ({before}, now Abacus 3)" in capsys.readouterr().err
    stretches = json.loads((result.folder / "config.json").read_text())["stretches"]
    assert [part["processor"] for part in stretches] == [before, "Abacus 3"]


def test_longer_than_planned(tmp_path):
    """Evaluations of both stretches are kept, and the record has the new budget."""
    config = tiny.config(eval_every=3, total_steps=32 * 30)
    short = train(config, tmp_path / "run", progress=False)
    longer = resume(short.folder, progress=False, total_steps=32 * 40)
    assert (longer.finished, longer.epochs) == (True, 40)
    assert folder.read_config(longer.folder).total_steps == 32 * 40
    assert resume(longer.folder, progress=False).digest == longer.digest  # its records are still whole
    with pytest.raises(ConfigError, match=r"has already done 1280 steps; the new total \(--steps\) must be larger"):
        resume(longer.folder, progress=False, total_steps=32)


def test_longer_than_an_early_stop(tmp_path):
    """A new number of steps takes the place of `stop_after`; resuming without one stays at it."""
    short = train(tiny.config(total_steps=32 * 30, stop_after=32 * 4), tmp_path / "run", progress=False)
    assert resume(short.folder, progress=False).epochs == 4
    assert resume(short.folder, progress=False, total_steps=32 * 6).epochs == 6
    config = folder.read_config(short.folder)
    assert (config.total_steps, config.stop_after) == (32 * 6, None)


def test_a_finished_run_says_how_to_train_longer(finished, capsys):
    settings, result = finished
    assert main(["resume", str(result.folder)]) == 0
    assert f"resume {result.folder} --steps {2 * settings.total_steps}" in capsys.readouterr().out


def test_a_warm_start_begins_where_the_other_run_ended(finished, tmp_path):
    settings, result = finished
    config = settings.replace(
        warm_start=str(result.folder), learning_rate=1e-12, learning_rate_vf=1e-12, total_steps=32
    )
    warm = train(config, tmp_path / "warm", progress=False)
    old, new = load_policy(result.folder), load_policy(warm.folder)
    x = np.random.default_rng(0).normal(size=(20, 2))
    np.testing.assert_allclose(new.actor.mode(x.astype(np.float32)), old.actor.mode(x.astype(np.float32)), atol=1e-5)
    np.testing.assert_allclose(new.shift, old.shift, atol=0.1)
    with pytest.raises(CheckpointError, match="does not fit this run's policy"):
        train(config.replace(hidden_sizes=(5,)), tmp_path / "other", progress=False)


def test_a_warm_start_resumes_without_the_run_it_started_from(finished, tmp_path, monkeypatch):
    _, result = finished
    shutil.copytree(result.folder, tmp_path / "source")
    monkeypatch.chdir(tmp_path)
    whole = train(tiny.config(warm_start="source"), tmp_path / "whole", progress=False)
    half_done(tmp_path, warm_start="source")
    shutil.rmtree(tmp_path / "source")
    resumed = resume(tmp_path / "run", progress=False)
    assert resumed.finished
    assert resumed.digest == whole.digest


def test_the_best_checkpoint_is_that_of_the_best_evaluation(finished):
    _, result = finished
    lines = records.read(result.folder, records.EVALUATIONS)
    best = max(lines, key=lambda line: np.mean(line["returns"]))
    run, checkpoint = folder.locate(result.folder / "best")
    assert run == result.folder
    assert json.loads((checkpoint / "manifest.json").read_text())["content"]["epoch"] == best["epoch"]
    assert evaluate_run(result.folder / "best").returns.tolist() == best["returns"]
    numbered = checkpoint_folders(result.folder)[0]
    assert evaluate_run(numbered).returns.tolist() == evaluate_run(result.folder).returns.tolist()
    inside = {"checkpoints": folder.locate, "metrics.jsonl": folder.locate, "best": folder.read_config}
    for within, look in inside.items():
        with pytest.raises(RunError, match=rf"a run folder.*; its run is {result.folder}"):
            look(result.folder / within)
    for look in (folder.locate, folder.read_config):
        with pytest.raises(RunError, match=rf"is not a run folder.*; a run in it is {result.folder}"):
            look(result.folder.parent)


def test_no_evaluations(tmp_path):
    result = train(tiny.config(eval_every=0), tmp_path / "run", progress=False)
    assert result.final_return is None
    assert not (result.folder / records.EVALUATIONS).exists()
    assert resume(result.folder, progress=False).digest == result.digest


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_and_says_so_in_the_exit_code(tmp_path, number):
    words = [
        "train",
        "trpo",
        "Pendulum-v1",
        "--out",
        "run",
        "--rollout-size",
        "64",
        "--steps",
        "1e6",
        "--eval-every",
        "0",
    ]
    process = trpl(*words, cwd=tmp_path)
    until = time.monotonic() + 120
    while not (tmp_path / "run/metrics.jsonl").exists() and time.monotonic() < until:
        time.sleep(0.2)
    process.send_signal(number)
    code, said = finish(process)
    assert code == 128 + number
    assert "stopped after epoch" in said
    assert checkpoint_folders(tmp_path / "run")
