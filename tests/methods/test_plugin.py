"""A method in one file outside the package is trained, resumed, swept, tuned and reported like any other."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from sweeping import SETTINGS, finish, plan_file, trpl

PLUGIN = Path(__file__).with_name("reinforce.py")
OWN = {name: value for name, value in SETTINGS.items() if name != "policy_epochs"}
OPTIONS = [
    word
    for name, value in OWN.items()
    for word in (f"--{name.replace('_', '-')}", *map(str, value if isinstance(value, list) else [value]))
]


def call(*words, cwd):
    return finish(trpl(*words, "--plugin", PLUGIN, cwd=cwd))


@pytest.mark.slow
def test_a_method_in_one_file_is_trained_swept_tuned_and_reported(tmp_path):
    code, said = call("train", "reinforce", "Pendulum-v1", "--step", "0.05", "--out", "run", *OPTIONS, cwd=tmp_path)
    assert code == 0, said
    about = json.loads((tmp_path / "run/config.json").read_text())
    assert about["config"]["step"] == 0.05
    assert about["plugins"] == [str(PLUGIN)]

    plan = plan_file(tmp_path / "plan.toml", methods=["reinforce"], seeds=1, policy_epochs=None, **{"total_steps": 128})
    lines = [line for line in plan.read_text().splitlines() if not line.startswith("policy_epochs")]
    plan.write_text("\n".join([*lines, "[method.reinforce]", "step = 0.1", ""]))
    code, said = call("sweep", plan, "--out", "runs", "--workers", "1", cwd=tmp_path)
    assert code == 0, said
    assert "1 run done, 0 failed" in said

    code, said = call(
        "tune", "reinforce", "Pendulum-v1", "--trials", "1", "--seeds", "1", "--workers", "1", "--best", "best.toml",
        *OPTIONS, cwd=tmp_path,
    )  # fmt: skip
    assert code == 0, said
    assert "  step = " in said
    assert "[method.reinforce]" in (tmp_path / "best.toml").read_text()

    code, said = call("report", "runs", "--out", "report", "--no-figures", cwd=tmp_path)
    assert code == 0, said
    page = (tmp_path / "report/index.html").read_text()
    assert "REINFORCE" in page
    assert "#aa3377" in page

    code, said = finish(trpl("resume", "run", cwd=tmp_path))  # without the plugin: which one is missing
    assert code == 2
    assert "there is no method 'reinforce'" in said
    assert f"(the run was made with --plugin {PLUGIN})" in said
    code, said = call("resume", "run", cwd=tmp_path)
    assert code == 0, said


def test_an_entry_point_of_an_installed_package_is_found(tmp_path):
    """A package that names its module in the group `trpl.methods` needs no option."""
    (tmp_path / "outside.py").write_text(
        "import trpl\nfrom trpl.settings import Config\n"
        "trpl.register(trpl.Method(name='outside', settings=Config, make='outside:make'))\n"
    )
    info = tmp_path / "outside-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: outside\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[trpl.methods]\noutside = outside\n")
    code = "from trpl.presets.listing import one_preset; print(one_preset('outside', 'Hopper-v4'))"
    done = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, check=True
    )
    assert "outside on Hopper-v4" in done.stdout
    assert "the method's defaults" in done.stdout


def test_a_file_named_twice_is_imported_once():
    """As in a worker of a sweep: TRPL_PLUGINS is inherited, and the command names the same file by its whole path."""
    named_twice = ("presets", "reinforce", "--plugin", PLUGIN)
    code, said = finish(trpl(*named_twice, cwd=PLUGIN.parent, TRPL_PLUGINS=PLUGIN.name))
    assert code == 0, said
    assert "reinforce on HalfCheetah-v4" in said


@pytest.mark.parametrize("word", ["nowhere_to_be_found", "nowhere.py"])
def test_a_plugin_that_is_not_there(word, capsys):
    from trpl import cli

    assert cli.main(["presets", "--plugin", word]) == 2
    assert "cannot be imported" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("code", "said"),
    [("1 / 0", "ZeroDivisionError"), ("def (", "SyntaxError"), ("raise SystemExit(3)", "SystemExit: 3")],
)
def test_a_plugin_with_an_error_is_named(code, said, tmp_path, capsys):
    from trpl import cli

    file = tmp_path / "broken_plugin.py"
    file.write_text(code)
    assert cli.main(["presets", "--plugin", str(file)]) == 2
    assert f"plugin {str(file)!r} cannot be imported: {said}" in capsys.readouterr().err


def test_a_plugin_given_twice_is_loaded_once(tmp_path, monkeypatch):
    from trpl.methods.registry import load_plugin

    monkeypatch.setattr("trpl.methods.registry._plugins", [])
    monkeypatch.chdir(tmp_path)
    (tmp_path / "counts_itself.py").write_text("import sys\nsys.loaded_here = getattr(sys, 'loaded_here', 0) + 1\n")
    for word in ("counts_itself.py", "counts_itself.py", str(tmp_path / "counts_itself.py")):
        load_plugin(word)
    assert sys.__dict__.pop("loaded_here") == 1
