"""Install every extra for real: the wheel built here, each into an environment of its own, and its program run there.

    python stress/builds.py [--extra NAME ...] [--out FILE.json]

An environment is made, filled by `pip install "trpl[extra]"` under constraints.txt, asked what it holds, put to work
and thrown away. The programs and what must not be there are those of the tests (tests/installing.py). Exit code 1 when
an extra does not install, does not run, or brings a framework that is not its own.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.progress import track
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from installing import EXTRAS, ROOT, UNUSUAL, build, program, sample_run, snapshot


class Installed(NamedTuple):
    """What came of one extra."""

    extra: str
    passed: bool
    distributions: int
    megabytes: int
    seconds: float
    words: str


def try_extra(extra: str, wheel: Path, working: Path, environment: Path) -> Installed:
    """One extra in an environment of its own."""
    start = time.perf_counter()
    python = str(environment / "bin" / "python")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True)
    pip = [sys.executable, "-m", "pip", "--python", python]
    what = f"trpl[{extra}] @ {wheel.as_uri()}" if extra else str(wheel)
    constraints = ["-c", str(ROOT / "constraints.txt")]
    done = subprocess.run([*pip, "install", "--quiet", *constraints, what], capture_output=True, text=True)
    listed = subprocess.run([*pip, "list", "--format=json"], capture_output=True, text=True).stdout
    if done.returncode == 0:
        variables = {"PATH": str(environment / "bin"), "HOME": str(working), "OMP_NUM_THREADS": "1"}
        command = [python, "-W", "ignore", "-c", program(extra)]
        done = subprocess.run(command, cwd=working, env=variables, capture_output=True, text=True)
    size = sum(path.stat().st_size for path in environment.rglob("*") if path.is_file() and not path.is_symlink())
    words = "" if done.returncode == 0 else (done.stderr.strip().splitlines() or ["?"])[-1]
    seconds = time.perf_counter() - start
    return Installed(extra or "(plain)", done.returncode == 0, len(json.loads(listed)), size >> 20, seconds, words)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--extra", nargs="+", default=[*EXTRAS, *UNUSUAL], choices=[*EXTRAS, *UNUSUAL], metavar="NAME")
    parser.add_argument("--out", type=Path, help="write the figures there as JSON")
    options = parser.parse_args()
    found = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (wheel,) = build(folder / "wheel", "--wheel", source=snapshot(folder / "tree"))
        for extra in track(options.extra, "extras", console=Console(stderr=True)):
            working = sample_run(folder / f"working-{extra}")
            with tempfile.TemporaryDirectory(dir=folder) as environment:
                found.append(try_extra(extra, wheel, working, Path(environment)))
    table = Table("extra", "runs alone", "distributions", "MB", "seconds", "")
    for row in found:
        passed = "yes" if row.passed else "NO"
        table.add_row(row.extra, passed, str(row.distributions), str(row.megabytes), f"{row.seconds:.0f}", row.words)
    Console().print(table)
    if options.out:
        options.out.write_text(json.dumps([row._asdict() for row in found], indent=1) + "\n")
    return 0 if all(row.passed for row in found) else 1


if __name__ == "__main__":
    sys.exit(main())
