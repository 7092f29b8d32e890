"""Tuning: the search spaces, trials in step, and studies that are pruned, killed, shared and resumed."""

import dataclasses
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import ClassVar

import pytest

from sweeping import SETTINGS, epochs, finish, trpl
from trpl.errors import ConfigError, MissingExtraError, RunError, UnknownEnvironmentError
from trpl.methods import find, names
from trpl.presets import preset
from trpl.presets.tables import TABLES
from trpl.settings.search import Choice
from trpl.sweeps.plan import planned_runs
from trpl.tuning.space import inside, space_of
from trpl.tuning.trials import SeedRuns, Stopped, score

optuna = pytest.importorskip("optuna", reason="Optuna is not installed: pip install 'trpl[tune]'")
from trpl.tuning import study as tune  # noqa: E402

TINY = {name: tuple(v) if isinstance(v, list) else v for name, v in SETTINGS.items()}
OPTIONS = [
    word
    for name, value in SETTINGS.items()
    for word in (f"--{name}", *(map(str, value) if isinstance(value, list) else [str(value)]))
]


@pytest.mark.parametrize("method", names())
@pytest.mark.parametrize("table", TABLES)
def test_spaces_hold_the_papers_values(method, table):
    base = preset(method, TABLES[table].tasks[0])
    space = space_of(base, fixed={})
    assert inside(space, base)
    assert {"value_epochs", "learning_rate_vf", "minibatch_size"} < set(space) <= set(find(method).settings.names())
    two = find(method).row in (0, 1, 2, 6, 7, 8) and base.get("bound") is None  # one bound for discrete actions
    bounds = {"mean_bound", "cov_bound"} if two else {"bound"}
    assert bounds <= set(space) or method in ("ppo", "ppo-m")
    assert ("temperature" in space) == find(method).controls_entropy


@pytest.mark.parametrize("method", names())
def test_every_corner_is_a_configuration(method):
    base = preset(method, "Hopper-v4")
    space = space_of(base, fixed={})
    for end in (0, -1):
        corner = {n: r.options[end] if isinstance(r, Choice) else (r.low, r.high)[end] for n, r in space.items()}
        assert inside(space, base.replace(**corner))


def test_the_folder_of_the_best_is_made_before_the_trials(tmp_path, monkeypatch):
    from trpl.tuning import session

    def opened(tuning):
        raise RunError("no database")

    monkeypatch.setattr(session, "open_study", opened)
    with pytest.raises(RunError, match="no database"):
        session.tune(tune.Tuning(method="kl", env_id="Hopper-v4", num_trials=1), best=tmp_path / "new" / "best.toml")
    assert (tmp_path / "new").is_dir()


def test_the_preset_is_followed_by_the_command_that_trains_with_it(monkeypatch, capsys):
    from trpl import cli
    from trpl.tuning import session

    found = session.TuneResult({"complete": 1}, {"mean_bound": 0.1}, 5.0, ())
    monkeypatch.setattr(session, "tune", lambda *args, **options: found)
    words = ["tune", "kl", "Hopper-v4", "--trials", "1"]
    assert cli.main([*words, "--best", "a b.toml"]) == cli.main(words) == 0
    last = "train with them  trpl train kl Hopper-v4 --preset 'a b.toml'\n"
    assert capsys.readouterr().out.count(last) == 1


def test_what_is_fixed_or_does_not_fit_is_not_searched():
    base = preset("kl", "Hopper-v4", mean_bound=0.1, rollout_size=128)
    space = space_of(base, fixed={"mean_bound": 0.1})
    assert "mean_bound" not in space
    assert space["minibatch_size"].options == (32, 64, 128)
    assert "minibatch_size" not in space_of(preset("kl", "Hopper-v4", rollout_size=32), fixed={})


def test_a_score_is_the_mean_of_the_last_twenty_over_seeds():
    rising, flat = {e: float(e) for e in range(1, 31)}, dict.fromkeys(range(1, 31), 4.0)
    assert score([rising, flat], epoch=2) == (1.5 + 4.0) / 2
    assert score([rising, flat], epoch=30) == (20.5 + 4.0) / 2  # mean of 11 … 30


def test_seeds_go_in_step_and_go_on(tmp_path):
    configs = [preset("ppo-m", "Pendulum-v1", seed=seed, **TINY) for seed in (0, 1)]
    stop = threading.Event()
    with SeedRuns(configs, tmp_path / "whole") as runs:
        whole = list(runs.scores(stop=stop))
    assert [epoch for epoch, _ in whole] == [1, 2, 3, 4, 5, 6]
    with SeedRuns(configs, tmp_path / "cut") as runs:
        scores = runs.scores(stop=stop)
        seen = [next(scores) for _ in range(3)]
        assert {trainer.epoch for trainer in runs.trainers} == {3}
        stop.set()
        with pytest.raises(Stopped):
            next(scores)
    with SeedRuns(configs, tmp_path / "cut") as runs:
        assert {trainer.epoch for trainer in runs.trainers} == {3}
        assert list(runs.scores(stop=threading.Event())) == whole
    assert seen == whole[:3]
    with pytest.raises(RunError, match="other settings"):
        SeedRuns([configs[0].replace(discount=0.5)], tmp_path / "cut").__enter__()


def test_postgresql_by_its_plain_url():
    assert tune.database_url("postgresql://me@here/db") == "postgresql+psycopg://me@here/db"
    assert tune.database_url("postgres://me@here/db") == "postgresql+psycopg://me@here/db"
    assert tune.database_url("sqlite:///a.db") == "sqlite:///a.db"
    assert tune.without_password("postgresql+psycopg://me:secret@here/db") == "postgresql+psycopg://me:...@here/db"
    with pytest.raises(ConfigError, match="is not a URL"):
        tune.database_url("a.db")


class FakeRuns:
    """In place of training: three scores, a function of the learning rate; some break, some stop, some crash."""

    behave = staticmethod(lambda config, epoch: config.learning_rate)
    folders: ClassVar[list[Path]] = []

    def __init__(self, configs, folder):
        self.config, self.folder = configs[0], folder

    def __enter__(self):
        self.folders.append(self.folder)
        return self

    def __exit__(self, *_):
        pass

    def scores(self, *, stop):
        for epoch in (1, 2, 3):
            yield epoch, self.behave(self.config, epoch)


@pytest.fixture
def fake(monkeypatch):
    monkeypatch.setattr(tune, "SeedRuns", FakeRuns)
    monkeypatch.setattr(FakeRuns, "folders", [])
    return lambda behave: monkeypatch.setattr(FakeRuns, "behave", staticmethod(behave))


def tuning_in(folder: Path, *, num_trials: int, **fixed) -> tune.Tuning:
    settings = {"total_steps": 3 * 2048, **fixed}
    about = {"method": "ppo-m", "env_id": "Pendulum-v1", "num_seeds": 1}
    return tune.Tuning(**about, num_trials=num_trials, out=folder, fixed=settings)


def states(tuning: tune.Tuning) -> dict[str, int]:
    return tune.count_states(tune.open_study(tuning))


def test_the_first_trial_is_the_papers_and_the_best_becomes_a_preset(tmp_path, fake):
    tuning = tuning_in(tmp_path, num_trials=4)
    tune.work(tuning)
    study = tune.open_study(tuning)
    first, *others = study.get_trials()
    assert first.params["learning_rate"] == tuning.base.learning_rate
    assert len({trial.params["learning_rate"] for trial in others}) == 3
    (tmp_path / "best.toml").write_text(tune.best_preset(study, tuning, study.best_trial))
    config = planned_runs(str(tmp_path / "best.toml"))[0].config
    assert config.learning_rate == max(trial.value for trial in study.get_trials())
    assert (config.total_steps, config.env_id) == (3 * 2048, "Pendulum-v1")
    assert "mean return" in config.source


def test_two_studies_cannot_meet_in_one_folder(tmp_path, fake):
    first = tuning_in(tmp_path, num_trials=1)
    tune.open_study(first)
    tune.open_study(first)
    for other in (
        dataclasses.replace(first, storage=f"sqlite:///{tmp_path}/other.db"),
        dataclasses.replace(first, study=first.study_name.replace("-", "/", 1)),
    ):
        assert other.folder == first.folder
        with pytest.raises(ConfigError, match=r"holds the trials of study .*: give another --out or --study"):
            tune.open_study(other)


def test_trials_need_evaluations(tmp_path):
    with pytest.raises(ConfigError, match="trials are scored by evaluations"):
        _ = tuning_in(tmp_path, num_trials=1, eval_every=0).base


def test_a_study_goes_on_and_never_draws_the_same_again(tmp_path, fake):
    tune.work(tuning_in(tmp_path, num_trials=3))
    tune.work(tuning_in(tmp_path, num_trials=6))
    tune.work(tuning_in(tmp_path, num_trials=6))  # nothing left to do
    trials = tune.open_study(tuning_in(tmp_path, num_trials=6)).get_trials()
    assert len(trials) == 6
    assert len({trial.params["learning_rate"] for trial in trials}) == 6
    with pytest.raises(ConfigError, match=r"has discount 0\.99, not 0\.5"):
        tune.open_study(tuning_in(tmp_path, num_trials=6, discount=0.5))


def test_bad_trials_are_pruned_by_the_running_mean(tmp_path, fake):
    tuning = tuning_in(tmp_path, num_trials=12)
    fake(lambda config, epoch: float(len(FakeRuns.folders) <= 5))  # five good ones, then bad ones
    tune.work(tuning)
    assert states(tuning) | {"complete": 5, "pruned": 7} == states(tuning)
    pruned = [t for t in tune.open_study(tuning).get_trials() if t.state.name == "PRUNED"]
    assert all(len(trial.intermediate_values) == 1 for trial in pruned)


def test_training_that_breaks_down_is_pruned_and_said(tmp_path, fake, monkeypatch):
    from trpl import cli
    from trpl.tuning import session

    def breaks(config, epoch):
        raise RunError("in epoch 3")

    fake(breaks)
    tuning = tuning_in(tmp_path, num_trials=2)
    tune.work(tuning)
    assert states(tuning)["pruned"] == 2
    monkeypatch.setattr(session, "watch", lambda *_, **__: ([], None))
    said = "training broke down in 2 of the pruned trials, in the last: in epoch 3"
    assert said in session.summary(session.tune(tuning))
    monkeypatch.setattr(session, "tune", lambda *_, **__: session.TuneResult({"pruned": 2}, None, None, ()))
    assert cli.main(["tune", "kl", "Hopper-v4", "--trials", "1"]) == 1


def test_an_environment_that_cannot_be_made_is_said_before_the_trials(tmp_path):
    from trpl.tuning import session

    tuning = dataclasses.replace(tuning_in(tmp_path / "out", num_trials=1), env_id="Pendulum-v7")
    with pytest.raises(UnknownEnvironmentError, match="did you mean 'Pendulum-v1'"):
        session.tune(tuning)
    assert not (tmp_path / "out").exists()


def test_a_stopped_trial_is_put_back_and_continues_in_its_folder(tmp_path, fake):
    def stops(config, epoch):
        if len(FakeRuns.folders) in (1, 2, 3) and epoch == 2:
            os.kill(os.getpid(), signal.SIGTERM)
            raise Stopped
        return 0.0

    fake(stops)
    tuning = tuning_in(tmp_path, num_trials=2)
    for _ in range(4):
        tune.work(tuning)
    assert states(tuning) == {"running": 0, "complete": 2, "pruned": 0, "failed": 3, "waiting": 0}
    assert [folder.name for folder in FakeRuns.folders] == ["trial-00000"] * 4 + ["trial-00004"]


def test_a_crash_is_tried_again_once(tmp_path, fake):
    def crashes(config, epoch):
        if len(FakeRuns.folders) <= 2:
            raise OSError("disk on fire")
        return 0.0

    fake(crashes)
    tuning = tuning_in(tmp_path, num_trials=2)
    for _ in range(2):
        with pytest.raises(OSError, match="disk on fire"):
            tune.work(tuning)
    tune.work(tuning)
    assert [folder.name for folder in FakeRuns.folders][:2] == ["trial-00000", "trial-00000"]
    assert states(tuning) == {"running": 0, "complete": 2, "pruned": 0, "failed": 2, "waiting": 0}


@pytest.mark.filterwarnings("ignore:Heartbeat of storage")  # asked for outside of optimize, to leave it running
def test_a_dead_workers_trial_is_noticed(tmp_path, fake):
    tuning = tuning_in(tmp_path, num_trials=1)
    trial = tune.open_study(tuning).ask()
    for name, wanted in tuning.space.items():
        tune.suggest(trial, name, wanted)
    trial.set_user_attr(tune.FOLDER, "trial-00000")
    gone = subprocess.Popen(["true"])
    gone.wait()
    trial.set_user_attr(tune.WORKER, f"{socket.gethostname()} {gone.pid}")
    tune.work(tuning)
    assert states(tuning) == {"running": 0, "complete": 1, "pruned": 0, "failed": 1, "waiting": 0}
    assert FakeRuns.folders == [tuning.folder / "trial-00000"]


def test_workers_never_take_the_same_trial(tmp_path, fake):
    """Ten waiting trials, four threads with connections of their own: each trial is asked for once."""
    fake(lambda config, epoch: 0.0)
    tuning = tuning_in(tmp_path, num_trials=11)
    study = tune.open_study(tuning)
    for number in range(10):
        study.enqueue_trial({"learning_rate": 1e-4 + 1e-5 * number})
    threads = [threading.Thread(target=tune.work, args=(tuning,), kwargs={"worker": worker}) for worker in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(FakeRuns.folders) == len(set(FakeRuns.folders)) == 11
    assert states(tuning)["complete"] == 11


def assert_whole(folder: Path, num_trials: int) -> None:
    runs = sorted(folder.glob("trial-*/seed-*"))
    assert len(runs) == 2 * num_trials
    assert all(epochs(run) == [1, 2, 3, 4, 5, 6] for run in runs)


def test_killed_and_started_again(tmp_path):
    words = ("tune", "ppo-m", "Pendulum-v1", "--trials", "2", "--seeds", "2", "--workers", "2", *OPTIONS)
    session = trpl(*words, cwd=tmp_path)
    until = time.monotonic() + 120
    while len(list(tmp_path.glob("tuning/*/trial-*/seed-1/checkpoints/*"))) < 2:
        assert session.poll() is None, session.communicate()[0]
        assert time.monotonic() < until
        time.sleep(0.05)
    session.send_signal(signal.SIGKILL)
    finish(session)
    code, output = finish(trpl(*words, "--best", "best.toml", cwd=tmp_path))
    assert code == 0, output
    assert "2 complete" in output
    assert_whole(tmp_path / "tuning" / "ppo-m-Pendulum-v1", num_trials=2)
    assert (tmp_path / "best.toml").exists()


@pytest.fixture
def postgresql():
    """A PostgreSQL server of this test's own on loopback."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    binaries = found[-1].parent if found else Path(shutil.which("initdb") or "/").parent
    if not (binaries / "initdb").exists():
        pytest.skip("no PostgreSQL server here: apt-get install postgresql")
    with tempfile.TemporaryDirectory() as folder, socket.socket() as free:
        user = "postgres" if os.geteuid() == 0 else None  # the server refuses to be root
        if user:
            shutil.chown(folder, user)
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        run = {"user": user, "check": True, "stdout": subprocess.DEVNULL, "cwd": folder}
        subprocess.run([binaries / "initdb", "-D", "data", "-U", "tuner", "-A", "trust", "--no-sync"], **run)
        control = [binaries / "pg_ctl", "-D", "data", "-w", "-l", "log"]
        quick = f"-p {port} -k {folder} -c listen_addresses=127.0.0.1 -c fsync=off -c shared_buffers=16MB"
        subprocess.run([*control, "-o", quick, "start"], **run)
        yield f"postgresql://tuner@127.0.0.1:{port}/postgres"
        subprocess.run([*control, "-m", "immediate", "stop"], **run)


def test_two_sessions_on_one_postgresql_study(tmp_path, postgresql):
    words = ("tune", "ppo-m", "Pendulum-v1", "--trials", "2", "--seeds", "2", "--workers", "1", "--storage", postgresql)
    sessions = [trpl(*words, *OPTIONS, cwd=tmp_path) for _ in range(2)]
    for code, output in [finish(session) for session in sessions]:
        assert code == 0, output
        assert "2 complete" in output
    assert_whole(tmp_path / "tuning" / "ppo-m-Pendulum-v1", num_trials=2)
    assert postgresql not in "".join(log.read_text() for log in tmp_path.glob("tuning/*/*.log"))


def test_no_database_is_said_in_one_line(tmp_path):
    tuning = tune.Tuning(
        method="kl", env_id="Hopper-v4", num_trials=1, storage="postgresql://me:secret@127.0.0.1:1/no", out=tmp_path
    )
    with pytest.raises(RunError, match="cannot be used") as caught:
        tune.open_study(tuning)
    assert "secret" not in str(caught.value)


def test_a_missing_driver_of_postgresql_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "psycopg", None)
    tuning = tune.Tuning(method="kl", env_id="Hopper-v4", num_trials=1, storage="postgresql://me@here/db", out=tmp_path)
    with pytest.raises(MissingExtraError, match=r"'psycopg': pip install \"trpl\[tune\]\""):
        tune.open_study(tuning)
