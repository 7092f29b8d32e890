"""Every block of code in the documentation runs, and every command in it is one that `trpl` understands."""

import re
import shlex
from importlib.util import find_spec
from pathlib import Path

import pytest
from blocks import PAGES, ROOT, TINY, commands, page_id, python_blocks

from trpl import cli

BEFORE = {  # what the README's first lines stand on
    "README.md": """
import gymnasium
import numpy as np
import torch

mean, old_mean = torch.randn(8, 3), torch.zeros(8, 3)
std, old_std = torch.ones(8, 3), torch.ones(8, 3)
observation = np.zeros(17)
env = gymnasium.make("Pendulum-v1")
"""
}
NEEDS = {"docs/tracking.md": "wandb", "docs/rsl_rl.md": "rsl_rl", "docs/brax.md": "brax"}
QUICK = ("presets", "evaluate", "export")  # run for real, on the small run

with_python = [page for page in PAGES if python_blocks(page)]
with_commands = [page for page in PAGES if commands(page)]


@pytest.mark.parametrize("page", with_python, ids=page_id)
@pytest.mark.usefixtures("folder", "small_budgets", "third_party_warnings")
def test_python_blocks_run(page, monkeypatch, capsys):
    wanted = NEEDS.get(page_id(page))
    if wanted and find_spec(wanted) is None:
        pytest.skip(f"{wanted} is not installed")
    monkeypatch.setenv("WANDB_SILENT", "true")
    namespace = {"__name__": "docs"}
    exec(compile(BEFORE.get(page_id(page), ""), "set-up", "exec"), namespace)
    for block in python_blocks(page):
        code = "\n" * block.line + block.code  # so that a traceback names the line of the page
        exec(compile(code, str(page), "exec"), namespace)
        check_messages(block.code, capsys.readouterr().out)


def check_messages(code, printed):
    """A comment behind print(error) is what is printed; "..." stands for anything."""
    for message in re.findall(r"print\(error\)  # (.*)", code):
        pattern = ".*".join(map(re.escape, message.split("...")))
        assert re.search(pattern, printed), f"{message!r} is not in {printed!r}"


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
            assert words[0] in ("pip", "tensorboard"), line


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
