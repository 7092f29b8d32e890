"""The command line: what it says and what it calls."""

import contextlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
from gymnasium import spaces
from rich.console import Console

import trpl
from trpl import cli
from trpl.errors import RunError
from trpl.policies.heads import GaussianHead
from trpl.presets import preset
from trpl.rollouts.spaces import head_of
from trpl.runs.environments import task_of
from trpl.runs.progress import Progress, remarks
from trpl.runs.trainer import RunResult

TINY = [
    *(
        "--steps",
        "64",
        "--rollout-size",
        "32",
        "--minibatch-size",
        "16",
        "--hidden-sizes",
        "4",
        "--hidden-sizes-vf",
        "4",
    ),
    *("--policy-epochs", "1", "--value-epochs", "1", "--eval-episodes", "1"),
]


def call(capsys, *argv):
    code = cli.main(list(argv))
    out, err = capsys.readouterr()
    return code, out, err


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cli") / "run"
    assert cli.main(["train", "ppo-m", "Pendulum-v1", "--out", str(folder), "--quiet", *TINY]) == 0
    return folder


def test_help_lists_the_commands_without_heavy_imports(capsys):
    code, out, _ = call(capsys, "--help")
    assert code == 0
    for name in (*cli.COMMANDS, "--plugin"):
        assert name in out
    heavy = (
        "import sys, trpl.cli; trpl.cli.main(['--help']); assert not {'jax', 'torch', 'gymnasium'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", heavy], check=True, stdout=subprocess.DEVNULL)


def test_python_runs_the_package():
    done = subprocess.run([sys.executable, "-m", "trpl", "--version"], check=True, capture_output=True, text=True)
    assert done.stdout == f"{trpl.__version__}\n"


def test_help_in_a_locale_without_its_letters(monkeypatch):
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding="ascii"))
    assert cli.main(["--help"]) == 0
    assert b"methods ? tasks" in sys.stdout.buffer.getvalue()


def test_help_that_nobody_reads(monkeypatch):
    """In a pipe whose reader has gone, and without standard output: no traceback."""
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "w") as closed:
        for out in (closed, None):
            monkeypatch.setattr(sys, "stdout", out)
            assert cli.main(["--help"]) == 0


def test_a_run_that_nobody_watches_goes_on(capsys, monkeypatch, tmp_path):
    """Its progress in a pipe whose reader has gone, as after `2>&1 | head -1`, which once ended it unsaved."""
    reading, writing = os.pipe()
    os.close(reading)
    with contextlib.suppress(BrokenPipeError), open(writing, "w") as closed:  # closing it writes once more
        monkeypatch.setattr(sys, "stderr", closed)
        code, out, _ = call(capsys, "train", "ppo-m", "Pendulum-v1", "--out", str(tmp_path / "run"), *TINY)
    assert (code, "finished 2 epochs" in out) == (0, True)


def test_the_exit_code_if_nobody_reads_the_output(monkeypatch):
    """A run stopped by Ctrl-C, which ends the reader in `| tee` too, ends with 130 all the same."""
    reading, writing = os.pipe()
    os.close(reading)
    monkeypatch.setitem(cli.COMMANDS, "presets", cli.Command("", lambda _: print("stopped") or 130))
    with open(writing, "w") as closed:
        monkeypatch.setattr(sys, "stdout", closed)
        assert cli.main(["presets"]) == 130


def test_help_of_a_command_by_either_word(capsys):
    for argv in (["help", "play"], ["play", "--help"]):
        with pytest.raises(SystemExit, match="0"):
            cli.main(argv)
        assert "--camera" in capsys.readouterr().out


def test_a_note_is_printed_once(capsys, monkeypatch):
    """An environment is made several times, for training and for evaluation, and says the same each time."""

    def command(_):
        for _ in range(2):
            warnings.warn("\x1b[33mWARN: mission is not seen\x1b[0m", stacklevel=1)  # as Gymnasium colours it
        return 0

    monkeypatch.setitem(cli.COMMANDS, "train", cli.Command("", command))
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        assert call(capsys, "train")[2] == "trpl: note: mission is not seen\n"


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["trian"], "no command 'trian'; did you mean 'train'?"),
        (["train", "kl"], "required: env"),
        (["train", "kl", "Hopper-v4", "--mean-bond", "1"], "did you mean '--mean-bound'?"),
        (["train", "kl", "Hopper-v4", "--mean-bound", "0"], "mean_bound must be above 0, not 0"),
        (["train", "kl", "Hopper-v4", "--mean_bound", "many"], "--mean-bound: invalid number value: 'many'"),
        (["train", "kl", "Hopper-v4", "--policy-epochs", "1.5"], "invalid whole number value: '1.5'"),
        (["train", "ppo", "Hopper-v4", "--cov-bound", "1"], "cov_bound does not apply to method 'ppo'"),
        (["train", "kk", "Hopper-v4"], "no method 'kk'"),
        (["train", "KL", "Hopper-v4"], "did you mean 'kl'?"),
        (["train", "kl", "CartPole"], "env_id 'CartPole' does not name its version; did you mean 'CartPole-v1'?"),
        (["export", "nowhere", "policy.npz"], "no checkpoint to use in nowhere: there is no such folder"),
        (["train", "kl", "NoSuchEnv-v0"], "there is no environment 'NoSuchEnv-v0' (your own is named"),
        (["train", "kl", "../Hopper-v4"], "env_id '../Hopper-v4' is not a name of the form"),
        (["train", "kl", "no_such_module:Mine-v0"], "there is no module 'no_such_module'"),
        (["train", "kl", "Hopper-v4", "--env-timeout", "0"], "env_timeout must be above 0"),
        (["train", "kl", "Hopper-v4", "--preset", "."], ". cannot be read: Is a directory"),
        (["resume", "nowhere", "--env-timeout", "soon"], "invalid number value: 'soon'"),
        (["train", "w2", "CartPole-v1"], "is for Gaussian policies, and the policy of CartPole-v1 is a Categorical"),
        (["resume", "nowhere"], "nowhere is not a run folder: it does not exist"),
        (["evaluate", "nowhere"], "nowhere is not a run folder: it does not exist"),
        (["evaluate", "nowhere", "--episodes", "0"], "--episodes: must be a whole number, at least 1, not 0"),
        (["play", "nowhere", "--size", "640", "tall"], "--size: must be a whole number, at least 1, not tall"),
        (["play", "nowhere", "--seed", "one"], "--seed: invalid whole number value: 'one'"),
        (["presets", "kll"], "did you mean 'kl'?"),
        (["presets", "kl", "--plugin"], "argument --plugin: expected one argument"),
        (["presets", "kl", "--plugin", ""], "plugin '' cannot be imported"),
        (["sweep", "table1", "--seeds", ""], "after `trpl sweep table1 --seeds` is empty: is a variable unset?"),
        (["train", "kl", "Hopper-v4", "--out="], "after `trpl train kl Hopper-v4 --out=` is empty"),
        (["report", ""], "after `trpl report` is empty"),
        (["figure"], "required: name (see"),
    ],
    ids=str,
)
def test_mistakes_are_answered_in_one_line(capsys, argv, said):
    code, out, err = call(capsys, *argv)
    assert code in (1, 2)
    assert said in err
    assert err.startswith("trpl: ")
    assert err.count("\n") == 1
    assert not out


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError(28, "No space left on device", "runs/x"), "runs/x: the disk is full"),
        (OSError(28, "No space left on device"), "the disk is full"),
        (PermissionError(13, "Permission denied", "runs"), "runs: Permission denied"),
        (MemoryError(), "out of memory: use smaller rollouts"),
        (RuntimeError("odd"), "RuntimeError: odd (set TRPL_TRACEBACK=1 to see where)"),
    ],
)
def test_errors_in_words(capsys, monkeypatch, error, said):
    def command(_):
        raise error

    monkeypatch.setitem(cli.COMMANDS, "train", cli.Command("", command))
    code, _, err = call(capsys, "train")
    assert code == 1
    assert err.startswith(f"trpl: {said}")
    monkeypatch.setenv("TRPL_TRACEBACK", "1")
    with pytest.raises(type(error)):
        cli.main(["train"])


def test_train_leaves_a_run_and_a_curve(finished):
    assert (finished / "learning_curve.png").read_bytes().startswith(b"\x89PNG")
    assert (finished / "config.json").exists()


def test_train_says_where_and_what_next(capsys, tmp_path):
    code, out, err = call(capsys, "train", "ppo-m", "Pendulum-v1", "--out", str(tmp_path / "run"), *TINY)
    assert code == 0
    assert "run folder" in out
    assert "trpl evaluate" in out
    assert "digest" in out
    assert "epoch 2/2" in err
    assert "steps/s" in err
    assert "kl" in err
    assert "entropy" in err
    assert "left 0:00:00" in err
    code, _, err = call(capsys, "train", "ppo-m", "Pendulum-v1", "--out", str(tmp_path / "run"), *TINY)
    assert code == 1
    assert "already holds a run" in err


def test_resume_of_a_finished_run_says_so(capsys, finished):
    code, out, _ = call(capsys, "resume", str(finished))
    assert code == 0
    assert re.search(r"finished 2 epochs, return -\d+ \(mean of the last 2 evaluations\)", out)


def test_a_small_return_keeps_its_decimals(finished, tmp_path):
    from trpl.runs.trainer import RunResult

    evaluations = tmp_path / "evaluations.jsonl"
    evaluations.write_text((finished / "evaluations.jsonl").read_text().splitlines()[0] + "\n")
    result = RunResult(tmp_path, finished=True, epochs=1, final_return=0.736, digest="")
    assert cli.mean_return(result) == ", return 0.74 (one evaluation)"
    assert cli.mean_return(result._replace(final_return=None)) == ""


def test_evaluate_prints_episodes(capsys, finished):
    code, out, _ = call(capsys, "evaluate", str(finished), "--episodes", "2")
    assert code == 0
    assert out.count("episode ") == 2
    one, two = (float(found) for found in re.findall(r"return (-[\d.]+)  length", out))
    mean, spread = map(float, re.search(r"mean return (-[\d.]+), standard deviation ([\d.]+)", out).groups())
    assert mean == pytest.approx((one + two) / 2, abs=0.02)
    assert spread == pytest.approx(abs(one - two) / 2**0.5, abs=0.02)  # of a sample: n - 1
    assert "deviation" not in call(capsys, "evaluate", str(finished), "--episodes", "1")[1]


def test_play_calls_the_recorder(capsys, finished, monkeypatch, tmp_path):
    from trpl.rollouts import video

    def record(policy, env_id, path, **options):
        assert env_id == ("Pendulum-v1", {}, "box", True, "gaussian")
        assert policy.action_size == 1
        assert options == {"episodes": 2, "seed": 0, "max_steps": 50, "camera": "side", "size": (64, 48)}
        return video.Recording(path, 51, [-1.0, -2.0])

    monkeypatch.setattr(video, "record", record)
    file = str(tmp_path / "a.gif")
    words = ["--episodes", "2", "--max-steps", "50", "--camera", "side", "--size", "64", "48"]
    for run in (finished, finished / "best", next((finished / "checkpoints").glob("0*"))):
        code, out, _ = call(capsys, "play", str(run), "--video", file, *words)
        assert code == 0
        assert "51 frames, return -1.00, -2.00" in out


def test_play_live_and_other_endings(capsys, finished, monkeypatch, tmp_path):
    for variable in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(variable, raising=False)
    assert "no screen to show it on" in call(capsys, "play", str(finished), "--live")[2]
    assert "give --video FILE" in call(capsys, "play", str(finished))[2]
    code, _, err = call(capsys, "play", str(finished), "--video", str(tmp_path / "a.avi"))
    assert (code, err) == (2, "trpl: a video is written as .mp4 or .gif, not as '.avi'\n")


def test_evaluate_and_export_take_the_same_paths(capsys, finished, tmp_path):
    for run in (finished, finished / "best", next((finished / "checkpoints").glob("0*"))):
        assert call(capsys, "evaluate", str(run))[0] == 0
        assert call(capsys, "export", str(run), str(tmp_path / "policy.npz"))[0] == 0


def test_help_is_grouped_with_choices_and_defaults(capsys):
    with pytest.raises(SystemExit):
        cli.main(["train", "--help"])
    written = capsys.readouterr().out
    assert written.startswith("usage: trpl train method env [options]\n\nTrain a policy")
    text = " ".join(written.split())
    assert "settings of frobenius, w2, kl, papi" in text
    assert text.index("the run: ") < text.index("--seed") < text.index(" collecting: ") < text.index(" learning: ")
    assert "structure of the covariance: diagonal, full (diagonal)" in text
    assert "ε_μ, bound on the mean part (0.03)" in text


def test_arguments_of_the_environment(capsys, monkeypatch):
    from trpl.runs import run

    seen = []
    monkeypatch.setattr(
        run, "train", lambda config, *_, **__: seen.append(config) or run.RunResult("", False, 0, None, "")
    )
    words = ["--env-kwargs", "g=9.81", "name=x y", "flag=true"]
    assert call(capsys, "train", "kl", "Pendulum-v1", *words, "--from", "runs/x")[0] == 0
    assert seen[0].env_kwargs == {"g": 9.81, "name": "x y", "flag": True}
    assert seen[0].warm_start == "runs/x"
    assert call(capsys, "train", "kl", "Pendulum-v1", "--env-kwargs", "g=1", "--env-kwargs", "h=2")[0] == 0
    assert seen[1].env_kwargs == {"g": 1, "h": 2}
    assert "expected KEY=VALUE, not 'g'" in call(capsys, "train", "kl", "Pendulum-v1", "--env-kwargs", "g")[2]


def test_what_a_user_may_not_expect_is_said_at_the_start(capsys, tmp_path):
    _, _, err = call(capsys, "train", "ppo-m", "Pendulum-v1", "--out", str(tmp_path / "run"), *TINY)
    assert "actions in units of the action box, clipped to the box; initial deviation 1" in err
    assert "no preset was tuned for Pendulum-v1" in err
    assert "a budget of 64 steps (--steps N changes it)" in err


@pytest.mark.parametrize(
    ("space", "options", "said"),
    [
        (spaces.Box(0, 1000, (2,)), {}, ["actions in units of the action box, clipped to the box"]),
        (spaces.Box(-np.inf, np.inf, (2,)), {}, ["actions as the policy gives them"]),
        (spaces.Box(0, 1, (2,)), {"policy": "squashed"}, ["actions squashed into the box by tanh"]),
        (spaces.Discrete(3), {}, ["the policy is a Categorical"]),
        (
            spaces.Tuple((spaces.Discrete(3), spaces.Box(0, 5, (2,)))),
            {},
            [
                "the policy is a Product of Categorical, Gaussian",
                "actions in units of the action box, clipped to the box",
            ],
        ),
    ],
    ids=str,
)
def test_how_actions_reach_the_environment_is_said(space, options, said):
    config = preset("kl", "Pendulum-v1", **options)
    found = remarks(config, head_of(space, task_of(config)))[:-1]  # the last one is about the preset
    assert [line.removesuffix("; initial deviation 1") for line in found] == said


def test_settings_by_name_reach_the_configuration(capsys, monkeypatch):
    from trpl.runs import run

    seen = []
    monkeypatch.setattr(
        run, "train", lambda config, out, **_: seen.append(config) or run.RunResult(out, False, 0, None, "")
    )
    argv = [
        "train",
        "kl-e",
        "Ant-v4",
        "--seed",
        "7",
        "--steps",
        "1e6",
        "--no-normalise-observations",
        "--hidden-sizes",
        "32",
        "16",
    ]
    code, out, _ = call(capsys, *argv, "--entropy_equality", "--gradient-clip", "none")
    assert code == 0
    assert "trpl resume" in out
    wanted = preset(
        "kl-e",
        "Ant-v4",
        seed=7,
        total_steps=1_000_000,
        normalise_observations=False,
        hidden_sizes=(32, 16),
        entropy_equality=True,
    )
    assert seen == [wanted]


def test_presets_are_shown(capsys):
    assert "learning_rate_vf" in call(capsys, "presets")[1]
    assert "0.015" in call(capsys, "presets", "papi", "Hopper-v4")[1]


@pytest.mark.parametrize("terminal", [True, False])
def test_progress_is_a_bar_or_lines(terminal, monkeypatch):
    now = 100.0
    monkeypatch.setattr("trpl.runs.progress.time.monotonic", lambda: now)
    screen = io.StringIO()
    config = preset("kl", "Hopper-v4", total_steps=4096)
    progress = Progress(config, console=Console(file=screen, force_terminal=terminal, width=160))
    metrics = {"train_return": None, "kl": 0.0123, "entropy": 4.5, "steps_per_second": 9876.0}
    with progress:
        progress.begin(0, GaussianHead(2))
        now = 102.0
        progress.update(1, metrics, 321.0)
        now = 104.0  # steps per second by the clock, not those of training alone
        progress.update(2, metrics, None)
    text = screen.getvalue()
    assert "kl Hopper-v4 seed 0" in text
    for word in ("return 321", "kl 0.0123", "entropy 4.50", "1024 steps/s"):
        assert word in text
    assert ("\x1b[" in text) is terminal
    assert ("epoch 2/2" in text) is not terminal


def test_progress_keeps_the_decimals_of_a_small_return():
    progress = Progress(preset("kl", "Hopper-v4", total_steps=2048), console=Console(file=(screen := io.StringIO())))
    with progress:
        progress.begin(0, GaussianHead(2))
        progress.update(1, {"train_return": None, "kl": 0.01, "entropy": 4.5}, 0.736)
    assert "return 0.74 " in screen.getvalue()
    assert "seed 0: 1 epoch of 2048 steps" in screen.getvalue()


def test_a_run_shorter_than_an_epoch_is_continued_by_another(capsys, finished, tmp_path):
    """Twice its 5 steps would be in the epoch that is done."""
    folder = shutil.copytree(finished, tmp_path / "run")
    about = json.loads((folder / "config.json").read_text())
    about["config"]["total_steps"] = 5
    (folder / "config.json").write_text(json.dumps(about))
    cli.conclude(RunResult(folder, finished=True, epochs=1, final_return=None, digest=""), quiet=False)
    assert f"resume {folder} --steps 64\n" in capsys.readouterr().out


def test_commands_to_go_on_with_work_as_they_stand(tmp_path, monkeypatch):
    """After `.venv/bin/trpl train` in a shell that does not know the environment, the words are `.venv/bin/trpl`."""
    from trpl.messages import program
    from trpl.runs.run import refuse_existing

    called = tmp_path / "bin" / "trpl"
    called.parent.mkdir()
    called.touch(mode=0o755)
    monkeypatch.setattr(sys, "argv", [str(called), "train"])
    monkeypatch.setenv("PATH", str(tmp_path))
    assert program() == str(called)
    monkeypatch.setenv("PATH", str(called.parent))
    assert program() == "trpl"
    monkeypatch.setattr(sys, "argv", ["trpl"])  # a job of a sweep
    assert program() == "trpl"
    for folder, words in (("run", "run"), ("my run", "'my run'")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "config.json").touch()
        monkeypatch.chdir(tmp_path)
        with pytest.raises(RunError, match=f"continue it with `trpl resume {words}`"):
            refuse_existing(Path(folder), env_id="Pendulum-v1")
