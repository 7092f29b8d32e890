"""Sentences: what was meant, what to install, what a pipe that is closed means."""

import builtins
import importlib
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from trpl import cli
from trpl.errors import MissingExtraError
from trpl.messages import EXTRAS, decimals, describe, missing_extra, needs
from trpl.methods.registry import settings
from trpl.settings.foreign import SETTINGS, WORDS, suggestion
from trpl.sweeps.sweep import SweepResult


def test_names_of_other_libraries_lead_to_ours():
    assert set(SETTINGS.values()) <= set(settings())
    assert not set(SETTINGS).intersection(WORDS)
    for name, ours in SETTINGS.items():
        if name != ours:
            assert f"here it is {ours!r}" in suggestion(name, settings())


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("--gamma", "here it is '--discount'"),
        ("--lr", "here it is '--learning-rate'"),
        ("--n-steps", "here it is '--rollout-size'"),
        ("--batch-size", "here it is '--minibatch-size'"),
        ("--n_epochs", "here it is '--policy-epochs'"),
        ("--ent-coef", "here it is '--entropy-weight'"),
        ("--net-arch", "here it is '--hidden-sizes'"),
        ("--device", "JAX_PLATFORMS=cpu"),
        ("--target-kl", "mean_bound and cov_bound"),
        ("--clip-range", "bounds take its place elsewhere: mean_bound and cov_bound"),
        ("--eps", "mean_bound and cov_bound limit every state's update"),  # --bound, which a Gaussian's kl refuses
        ("--max-kl", "mean_bound and cov_bound limit every state's update"),
        ("-n", "here it is '--total-steps'"),
        ("--init-noise-std", "here it is '--initial-std'"),
        ("--num-mini-batches", "minibatch_size"),
        ("--discounting", "here it is '--discount'"),
        ("--seeds", "trpl sweep PLAN --seeds N"),
        ("--sede", "did you mean '--seed'?"),
        ("--hidden-size", "did you mean '--hidden-sizes'?"),
        ("--checkpoint", "did you mean '--checkpoint-every'?"),
        ("--env-id", "the task is the second word"),
        ("--capture-video", "trpl play RUN --video FILE"),
        ("--buffer-size", "no replay buffer"),
        ("--no-eval", "eval_every 0"),
        *(
            (f"--{far}", f"unrecognised argument '--{far}' (see")
            for far in ("banana", "frobnicate", "hf-entity", "ortho-init", "frame-stack", "precision", "time-limit")
        ),
    ],
)
def test_options_of_other_libraries(capsys, option, said):
    assert cli.main(["train", "kl", "Hopper-v4", option, "1"]) == 2
    assert said in capsys.readouterr().err


def test_returns_below_ten_have_decimals():
    assert (decimals(5657.3), decimals(-10.0), decimals(0.74), decimals(-3.2, float("nan"))) == (0, 0, 2, 2)
    assert decimals(0.5, 12.0) == 0  # side by side they have the same


def test_the_same_in_python():
    from trpl.errors import ConfigError
    from trpl.presets import preset

    for name, said in {
        "gamma": "; here it is 'discount'",
        "callback": r": callbacks=\[f\] in Python",
        "verbose": r": .*\(progress=False in Python\)",
        "save_path": r": --out \(out= in Python\)",
    }.items():
        with pytest.raises(ConfigError, match=f"there is no setting '{name}'{said}"):
            preset("kl", "Hopper-v4", **{name: 1})


def test_a_missing_extra_says_what_to_install():
    with pytest.raises(MissingExtraError, match=r'pip install "trpl\[tune\]"'), needs("tune"):
        raise ModuleNotFoundError("No module named 'optuna'", name="optuna.trial")
    with pytest.raises(ModuleNotFoundError, match="other"), needs("tune"):
        raise ModuleNotFoundError("other", name="other")
    assert missing_extra(ImportError("x", name="trpl")) is None
    for package, extra in EXTRAS.items():
        assert f"trpl[{extra}]" in str(missing_extra(ImportError("x", name=package)))


MODULES = {
    "trpl.tuning.study": ("optuna", "tune"),
    "trpl.sweeps.ray_pool": ("ray", "ray"),
    "trpl.integrations.onnx": ("onnx", "onnx"),
    "trpl.integrations.torchrl": ("tensordict", "torchrl"),
    "trpl.integrations.sb3": ("stable_baselines3", "sb3"),
    "trpl.integrations.rsl_rl": ("rsl_rl", "rsl-rl"),
    "trpl.integrations.rl_games": ("rl_games", "rl-games"),
    "trpl.integrations.rl_zoo3": ("rl_zoo3", "rl-zoo3"),
    "trpl.integrations.skrl": ("skrl", "skrl"),
    "trpl.integrations.brax": ("brax", "brax"),
    "trpl.integrations.trl": ("transformers", "trl"),
    "trpl.api": ("orjson", "train"),
    "trpl.torch": ("torch", "torch"),
    "trpl.jax": ("jax", "jax"),
}


@pytest.mark.parametrize("module", MODULES)
def test_every_door_to_an_extra_says_so(module):
    package, extra = MODULES[module]
    code = f"import sys; sys.modules[{package!r}] = None\nimport {module}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert f'pip install "trpl[{extra}]"' in done.stderr.splitlines()[-1]


def test_every_documented_module_says_what_to_install():
    """What the pages import or describe, with nothing but NumPy installed: it works, or names an extra."""
    root = Path(__file__).parents[1]
    text = "\n".join(page.read_text() for page in (root / "docs").rglob("*.md"))
    named = re.findall(r"^(?:from|:::) (trpl[\w.]*)", text, re.M)
    files = {path.with_suffix("") for path in (root / "src").rglob("*.py")}
    modules = {
        ".".join(parts[:n])
        for parts in (name.split(".") for name in named)
        for n in range(1, len(parts) + 1)
        if not {root.joinpath("src", *parts[:n]), root.joinpath("src", *parts[:n], "__init__")}.isdisjoint(files)
    }
    code = f"""
import importlib, sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {set(EXTRAS)!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Missing())
for name in {sorted(modules)!r}:
    try:
        importlib.import_module(name)
    except ImportError as error:
        if type(error).__name__ != "MissingExtraError":
            print(name, error)
"""
    assert len(modules) > 20
    assert not subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize(("package", "extra"), [("optuna", "tune"), ("jax", "train"), ("torch", "torch")])
def test_the_command_line_too(capsys, monkeypatch, package, extra):
    def command(_):
        raise ModuleNotFoundError(f"No module named {package!r}", name=package)

    monkeypatch.setitem(cli.COMMANDS, "tune", cli.Command("", command))
    assert cli.main(["tune"]) == 1
    assert capsys.readouterr().err == f'trpl: this needs the package {package!r}: pip install "trpl[{extra}]"\n'


def test_a_missing_tracker_is_said_before_the_run_has_a_folder(capsys, monkeypatch, tmp_path):
    """Installed, the same command would be told that the folder already holds a run."""
    monkeypatch.setitem(sys.modules, "wandb", None)
    assert cli.main(["train", "kl", "Pendulum-v1", "--out", str(tmp_path / "run"), "--track", "wandb"]) == 1
    assert capsys.readouterr().err == "trpl: this needs the package 'wandb': pip install \"trpl[wandb]\"\n"
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_sweeps_and_tuning_say_which_signal_stopped_them(monkeypatch, tmp_path, capsys, number, code):
    stopped = SweepResult((), (), stopped=True, signal=number)
    monkeypatch.setattr("trpl.sweeps.sweep.sweep", lambda *_, **__: stopped)
    assert cli.main(["sweep", "alpha", "--out", str(tmp_path)]) == code
    session = pytest.importorskip("trpl.tuning.session", reason="Optuna is not installed: pip install 'trpl[tune]'")
    monkeypatch.setattr(session, "tune", lambda *_, **__: session.TuneResult({}, None, None, (), signal=number))
    assert cli.main(["tune", "kl", "Hopper-v4", "--trials", "1", "--out", str(tmp_path)]) == code
    assert capsys.readouterr().out.count("the same command continues") == 2


@pytest.mark.parametrize("path", ["file", "file/inside"])
def test_a_file_where_a_folder_is_needed_is_called_that(path, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError) as raised:
        (tmp_path / path).mkdir(parents=True, exist_ok=True)
    assert describe(raised.value) == f"{tmp_path / path}: it is a file, or in one, where a folder is needed"


def test_a_reader_that_has_seen_enough_is_no_error():
    done = subprocess.run(
        f"{sys.executable} -m trpl.cli presets | head -1", shell=True, capture_output=True, text=True, check=True
    )
    assert done.stdout
    assert not done.stderr


def test_an_older_python_is_told_in_one_line(monkeypatch):
    import trpl

    monkeypatch.setattr(sys, "version_info", (3, 10, 1))
    monkeypatch.setattr(sys, "version", "3.10.1 (main)")
    with pytest.raises(ImportError, match=r"^trpl needs Python 3\.11 or newer; this is 3\.10\.1$"):
        importlib.reload(trpl)
    monkeypatch.setattr(sys, "argv", ["-m"])  # as `python -m trpl.cli` has it while the package is imported
    with pytest.raises(SystemExit, match=r"^trpl needs Python 3\.11 or newer; this is 3\.10\.1$"):
        importlib.reload(trpl)
    monkeypatch.undo()
    importlib.reload(trpl)
    assert builtins.isinstance(trpl.__version__, str)
