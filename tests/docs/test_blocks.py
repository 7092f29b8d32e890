"""Every block of code in the documentation runs, and every command in it is one that `trpl` understands."""

import ast
import os
import re
import shlex
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from blocks import PAGES, ROOT, TINY, commands, installs, page_id, python_blocks
from packaging.requirements import Requirement

from installing import canonical, closure, not_installed, owners, pins, run_with
from trpl import cli

QUICK = ("presets", "evaluate", "export")  # run for real, on the small run
RUNNER = Path(__file__).parent / "run_page.py"
NEEDED = (  # words of a command, and the extra that it takes
    (r"^trpl ", "train"),
    (r"^trpl tune ", "tune"),
    (r"--ray ", "ray"),
    (r"--track wandb", "wandb"),
    (r"--track mlflow", "mlflow"),
    (r"^trpl export .*\.onnx", "onnx"),
    (r"^trpl export .*\.pt$", "torch"),
    (r"^tensorboard ", "train"),
)
TAKEN = (  # a module of trpl that a page imports, and the extra that it takes
    *((rf"trpl\.{name}", name) for name in ("torch", "jax")),
    (r"trpl\.(runs|sweeps|reports|rollouts|algorithms)", "train"),
    (r"trpl\.tuning", "tune"),
    *((rf"trpl\.integrations\.{name}", name) for name in ("sb3", "torchrl", "trl", "brax")),
    *((rf"trpl\.integrations\.{name}", name.replace("_", "-")) for name in ("skrl", "rl_games", "rl_zoo3", "rsl_rl")),
)
PLAIN = {"OMP_NUM_THREADS": "1"}


def runner(page):
    """A program that runs the page's blocks."""
    return f"import runpy, sys; sys.argv[1:] = [{str(page)!r}]; runpy.run_path({str(RUNNER)!r}, run_name='__main__')"


with_python = [page for page in PAGES if python_blocks(page) and not not_installed(installs(page) or "trpl")]
with_commands = [page for page in PAGES if commands(page)]
SAMPLE = [ROOT / name for name in ("README.md", "docs/choosing.md")]  # all: stress/pages.py


@pytest.mark.parametrize("part", [0, 1], ids=["one half", "the other"])
def test_python_blocks_run(part, folder):
    """Half of the pages in one process each time: most of a page's time is importing."""
    command = [sys.executable, str(RUNNER), *map(str, with_python[part::2])]
    done = subprocess.run(command, cwd=folder, env=os.environ | PLAIN, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.parametrize("page", with_python, ids=page_id)
def test_imports_are_covered_by_the_extras_the_page_names(page):
    """Every module that a page imports is brought by what the page installs."""
    brought = closure(installs(page) or "trpl")
    for name in imported(page):
        extra = next((extra for pattern, extra in TAKEN if re.match(pattern, name)), None)
        if extra:
            missing = closure(f"trpl[{extra}]") - brought
            assert not missing, f"import {name} takes trpl[{extra}], which {page_id(page)} does not name"
        top = name.partition(".")[0]
        if top in owners():  # else the standard library's, the page's own, or not installed here
            assert brought & owners()[top], f"{page_id(page)} does not install {top}"


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_extras_are_spelt_as_a_wheel_spells_them(page):
    """With hyphens: pip before 23.3, which comes with Python 3.11, installs nothing for `rl_games` and only warns."""
    for wanted in map(Requirement, (installs(page) or "").split()):
        assert {canonical(extra) for extra in wanted.extras} == wanted.extras
        if wanted.name == "trpl":
            assert wanted.extras <= set(metadata.metadata("trpl").get_all("Provides-Extra") or [])


def test_hosts_that_constraints_do_not_cover_choose_their_own_versions():
    """rl_games wants psutil below 6, Brax JAX below 0.10: with every pin pip found no versions for their pages."""
    covered, host = pins("trpl[torch,sb3]").splitlines(), pins("trpl[rl-games]").splitlines()
    assert covered == (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    assert [line.partition("=")[0] for line in host] == ["torch"]


def imported(page):
    """The modules that a page's blocks import."""
    for block in python_blocks(page):
        for node in ast.walk(ast.parse(block.code)):
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module:
                yield node.module


@pytest.mark.parametrize("page", SAMPLE, ids=page_id)
def test_python_blocks_run_with_the_extras_the_page_names(page, folder):
    """In a process that finds what the page's `pip install` commands bring and nothing else that is installed here."""
    done = run_with(installs(page) or "trpl", runner(page), cwd=folder)
    assert done.returncode == 0, f"with: pip install {installs(page)}\n{done.stderr[-3000:]}"


@pytest.mark.parametrize("page", with_commands, ids=page_id)
def test_commands_are_covered_by_the_extras_the_page_names(page):
    brought = closure(installs(page) or "trpl")
    for line in commands(page):
        for pattern, extra in NEEDED:
            if re.search(pattern, line):
                missing = closure(f"trpl[{extra}]") - brought
                assert not missing, f"{line} takes trpl[{extra}], which {page_id(page)} does not name"


def test_a_page_that_names_too_little_is_noticed(folder):
    """The page on Stable-Baselines3 with the extra of the page on JAX."""
    page = ROOT / "docs" / "sb3.md"
    done = run_with("trpl[jax]", runner(page), cwd=folder)
    assert done.returncode != 0
    assert 'pip install "trpl[sb3]"' in done.stderr


class Understood(BaseException):
    """Raised where a command would begin its work; no `except Exception` catches it."""


@pytest.mark.parametrize("page", with_commands, ids=page_id)
@pytest.mark.usefixtures("folder")
def test_commands_are_understood(page, monkeypatch, capsys):
    write_toml_files(page)
    stop_before_work(monkeypatch)
    for line in commands(page):
        words = shlex.split(line)
        if words[0] == "trpl":
            try:
                code = cli.main(words[1:])
            except (Understood, SystemExit) as end:  # SystemExit: argparse after --help
                code = 0 if isinstance(end, Understood) else end.code
            assert code in (0, None), f"{line}: {capsys.readouterr().err}"
        elif words[0] == "make":
            assert re.search(rf"^{words[1]}:", (ROOT / "Makefile").read_text(), re.MULTILINE), line
        elif words[0] == "python":
            assert (ROOT / words[1]).exists(), line
        else:
            assert words[0] in ("pip", "tensorboard", "git", "cd"), line


def stop_before_work(monkeypatch):
    """Training, sweeping and tuning stop once the configuration has been built, other commands once they are parsed."""
    parse = cli.Parser.parse

    def parse_then_stop(self, argv):
        args = parse(self, argv)
        if self.prog.split()[-1] in ("train", "sweep", "tune", *QUICK):
            return args
        raise Understood

    def stop(*args, **kwargs):
        raise Understood

    monkeypatch.setattr(cli.Parser, "parse", parse_then_stop)
    monkeypatch.setattr("trpl.runs.run.train", stop)
    monkeypatch.setattr("trpl.sweeps.sweep.sweep", stop)
    monkeypatch.setattr("trpl.tuning.session.tune", stop)


def write_toml_files(page):
    """Blocks of TOML whose first line is a comment with a file's name become that file."""
    for code in re.findall(r"^```toml\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL):
        name = re.match(r"# (\S+\.toml)\n", code)
        if name:
            Path(name[1]).write_text(code)


@pytest.mark.usefixtures("folder")
def test_an_environment_of_ones_own_trains():
    """The page's example, in a process that starts where the reader's does."""
    page = ROOT / "docs" / "training.md"
    (block,) = (block for block in python_blocks(page) if "point_task.py" in block.code)
    exec(block.code, {})
    (line,) = (line for line in commands(page) if "point_task:" in line)
    argv = [*shlex.split(line)[1:], *TINY, "--quiet", "--out", "runs/point"]
    assert cli.main(argv) == 0
    assert Path("runs/point/learning_curve.png").exists()


def test_a_wrong_command_is_noticed(monkeypatch, capsys):
    stop_before_work(monkeypatch)
    assert cli.main(["train", "kl", "Hopper-v4", "--mean-bond", "1"]) == 2
    assert cli.main(["train", "kl", "Hopper-v4", "--ratio-clip", "1"]) == 2
    with pytest.raises(Understood):
        cli.main(["train", "kl", "Hopper-v4", "--mean-bound", "1"])
