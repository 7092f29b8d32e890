"""Weights & Biases and MLflow, offline, in the run folder."""

import math

import pytest

from trpl.integrations.tracking import run_id, tracker

CONFIG = {"method": "kl", "env_id": "Hopper-v4", "seed": 3, "hidden_sizes": (64, 64), "clip": None}


def test_wandb_offline(tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb", reason="wandb is not installed")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.delenv("WANDB_MODE", raising=False)
    with tracker("wandb", folder=tmp_path, config=CONFIG) as track:
        assert wandb.run.settings.mode == "offline"
        assert wandb.run.name == "kl-Hopper-v4-3"
        track(2048, {"train_return": 5.0, "kl": None, "entropy": math.inf})
        track(4096, {"train_return": 7.0})
        assert wandb.run.summary["train_return"] == 7.0
        assert "kl" not in wandb.run.summary.keys()  # noqa: SIM118 - the summary is not a dictionary
    (record,) = tmp_path.glob("wandb/offline-run-*")
    assert record.name.endswith(run_id(tmp_path))
    assert list(record.glob("*.wandb"))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of SQLAlchemy, by MLflow
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_mlflow_in_the_folder_and_resumed(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow", reason="mlflow is not installed")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    with tracker("mlflow", folder=tmp_path, config=CONFIG) as track:
        track(2048, {"train_return": 5.0, "kl": None, "entropy": math.inf})
    with tracker("mlflow", folder=tmp_path, config=CONFIG) as track:
        track(4096, {"train_return": 7.0})
    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{tmp_path}/mlflow.db")
    experiment = client.get_experiment_by_name("trpl")
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.status == "FINISHED"
    assert run.data.params["env_id"] == "Hopper-v4"
    history = client.get_metric_history(run.info.run_id, "train_return")
    assert [(metric.step, metric.value) for metric in history] == [(2048, 5.0), (4096, 7.0)]
    assert set(run.data.metrics) == {"train_return"}


def test_an_unknown_tracker_is_refused(tmp_path):
    with pytest.raises(ValueError, match="choose from wandb, mlflow"), tracker("comet", folder=tmp_path, config={}):
        pass
