"""Run every Python block of a page, in the working directory, one after the other.

    python tests/docs/run_page.py PAGE ...

Several pages run in one process, each in a copy of the working directory; a page that fails does not stop the others.
The page's own imports are all it needs, so this also runs in an environment with nothing but the extras that the page
names. Budgets are small: a model of Stable-Baselines3 learns for one short rollout, whatever the page says. A comment
behind `print(error)` must be what is printed, with "..." for anything. Warnings that the page or trpl cause are errors.
"""

import contextlib
import io
import os
import re
import shutil
import sys
import tempfile
import traceback
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from blocks import python_blocks

THEIRS = (
    "rich is experimental",  # tqdm.rich, for SB3's progress bar
    "Creating .* inherits from WeightUpdaterBase",  # TorchRL, of itself
    ".*is out of date",  # Gymnasium, of the paper's -v4 tasks
)


def main(pages: list[Path]) -> int:
    os.environ.setdefault("WANDB_SILENT", "true")
    sys.path.insert(0, "")  # modules that a page writes
    if any("trpl.integrations.sb3" in block.code for page in pages for block in python_blocks(page)):
        shorten_learning()
    if len(pages) == 1:
        run(pages[0])
        return 0
    home, failed = Path.cwd(), 0
    for page in pages:
        with tempfile.TemporaryDirectory() as name:
            os.chdir(shutil.copytree(home, Path(name, "working")))
            try:
                run(page)
            except Exception:
                traceback.print_exc()
                failed += 1
            os.chdir(home)
    return failed


def run(page: Path) -> None:
    """The blocks of one page."""
    namespace = {"__name__": "docs"}
    with warnings.catch_warnings():
        warnings.filterwarnings("error", module=r"trpl|docs")
        for message in THEIRS:
            warnings.filterwarnings("ignore", message=message)
        for block in python_blocks(page):
            code = "\n" * block.line + block.code  # so that a traceback names the line of the page
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                exec(compile(code, str(page), "exec"), namespace)
            check_messages(block.code, printed.getvalue())


def shorten_learning() -> None:
    from trpl.integrations.sb3 import TRPL

    learn = TRPL.learn
    TRPL.__init__.__kwdefaults__["n_steps"] = 64
    TRPL.learn = lambda self, total_timesteps, *args, **kwargs: learn(self, 64, *args, **kwargs)


def check_messages(code: str, printed: str) -> None:
    for message in re.findall(r"print\(error\)  # (.*)", code):
        pattern = ".*".join(map(re.escape, message.split("...")))
        assert re.search(pattern, printed), f"{message!r} is not in {printed!r}"


if __name__ == "__main__":
    sys.exit(main([Path(word) for word in sys.argv[1:]]))
