"""Follow the pages to the letter: install what a page names and nothing else, then run its code and its commands.

    python stress/pages.py [--page docs/sb3.md ...] [--out FILE.json]

Each page gets an environment with what its `pip install` commands name and nothing else, under constraints.txt where
that covers it; pages that name the same share it. A page's Python blocks run there, and its `trpl` commands that end
soon: training with a small budget, evaluation, export, presets, reports, the figure that needs no runs. tests/docs does
the same in the suite, but hides what is installed instead of installing. Exit code 1 when something fails.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.markup import escape
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "docs"))
from blocks import PAGES, RUN, TINY, commands, installs, page_id, python_blocks

from installing import ROOT, build, pins, snapshot

TESTS = ROOT / "tests"
SOON = ("train", "presets", "evaluate", "export", "report")


class Followed(NamedTuple):
    """What came of one page."""

    page: str
    installed: str
    commands: int
    seconds: float
    words: str  # the first failure; empty where all is well


def follow(page: Path, wheel: Path, trained: Path, folder: Path) -> Followed:
    """Follow one page in a working directory of its own, and in the environment of pages that install the same."""
    start, asked = time.perf_counter(), installs(page) or "trpl"
    bin, working = folder / re.sub(r"\W+", "-", asked) / "bin", folder / page_id(page).replace("/", "-")
    shutil.copytree(trained, working / RUN)
    variables = {"PATH": f"{bin}:{os.defpath}", "HOME": str(working), "OMP_NUM_THREADS": "1", "WANDB_MODE": "offline"}
    steps = []
    if not bin.exists():
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(bin.parent)], check=True)
        pip = [sys.executable, "-m", "pip", "--python", str(bin / "python"), "install", "--quiet", "--no-compile"]
        pinned = bin.parent / "pins.txt"
        pinned.write_text(pins(asked), encoding="utf-8")
        steps.append([*pip, "-c", str(pinned), *(_of_wheel(word, wheel) for word in asked.split())])
    num_installs = len(steps)
    if python_blocks(page):
        steps.append([str(bin / "python"), str(TESTS / "docs" / "run_page.py"), str(page)])
    steps += [list(command) for line in commands(page) if (command := soon(line))]
    failure = ""
    for step in steps:
        environment = os.environ if step[0] == sys.executable else variables
        done = subprocess.run(step, cwd=working, env=environment, capture_output=True, text=True)
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["?"])[-1]
            failure = f"{shlex.join(step[-4:])}: {last}"
            break
    return Followed(page_id(page), asked, len(steps) - num_installs, time.perf_counter() - start, failure)


def _of_wheel(word: str, wheel: Path) -> str:
    name, bracket, extras = word.partition("[")
    return f"trpl{bracket}{extras} @ {wheel.as_uri()}" if name == "trpl" else word


def soon(line: str) -> tuple[str, ...]:
    """A command that ends soon, with a small budget; empty for one that does not."""
    words = shlex.split(line)
    if words[:2] == ["trpl", "figure"] and words[2] == "interpolation":
        return tuple(words)
    if words[0] != "trpl" or words[1] not in SOON or any(word.endswith(".toml") or ":" in word for word in words):
        return ()
    if words[1] == "train" and "--help" not in words:
        words += [*TINY, "--quiet", "--out", f"runs/{'-'.join(words[2:4])}-{len(words)}"]
    return tuple(words)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--page", nargs="+", type=Path, metavar="FILE", help="these instead of all")
    parser.add_argument("--out", type=Path, help="write what was found there as JSON")
    options = parser.parse_args()
    pages = [page.resolve() for page in options.page or PAGES if python_blocks(page) or installs(page)]
    found = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (wheel,) = build(folder / "wheel", "--wheel", source=snapshot(folder / "tree"))
        words = ["train", "kl", "HalfCheetah-v4", "--out", str(folder / "run"), "--quiet", *TINY]
        subprocess.run([sys.executable, "-m", "trpl.cli", *words], check=True)
        for number, page in enumerate(pages, start=1):
            row = follow(page, wheel, folder / "run", folder)
            found.append(row)
            print(f"{number}/{len(pages)}  {row.page}  {row.seconds:.0f} s  {row.words or 'ran'}", flush=True)
    table = Table("page", "pip install", "programs and commands", "seconds", "")
    for row in found:
        table.add_row(row.page, escape(row.installed), str(row.commands), f"{row.seconds:.0f}", escape(row.words))
    Console(width=160).print(table)
    if options.out:
        options.out.write_text(json.dumps([row._asdict() for row in found], indent=1) + "\n", encoding="utf-8")
    return 0 if all(not row.words for row in found) else 1


if __name__ == "__main__":
    sys.exit(main())
