"""Run the tests of the maths, the layers and a short training under the oldest and the newest supported versions.

    python stress/versions.py [--only oldest pinned newest] [--python 3.X ...] [--extras torch jax train]
                              [--short] [--keep FOLDER] [--tests FILE ...] [--workers 2]

Each set of versions gets an environment of its own, with the wheel built here and its extras torch, jax and train:

    oldest   the first Python of pyproject.toml's classifiers, and every requirement there at its lower bound
    pinned   the Python in between, and the exact versions of constraints.txt
    newest   the last Python of the classifiers, and the newest of everything

So the declared ranges are what was tried. `--python 3.12 3.13` tries the sets with each of these Pythons instead of
their own. Environments in `--keep` are used again, with a new wheel.

An interpreter is looked for as `python3.X` in every folder of the path, among pyenv's and by `uv python find`; a set
whose Python is not found says so, and the others are tried. PyTorch brings CUDA with it, several gigabytes, unless pip
is told of an index with CPU builds (PIP_EXTRA_INDEX_URL). `--extras jax train` does without it, and tests that need it
are skipped.

`--short` is for continuous integration: the oldest versions, but PyTorch as constraints.txt has it, and the conformance
suite's values alone. Exit code 1 when a set fails or none could be tried.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from packaging.requirements import Requirement
from packaging.version import Version
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from installing import ROOT, build, canonical, snapshot

EXTRAS = ("torch", "jax", "train")
TOOLS = ("pytest", "pytest-xdist", "hypothesis", "scipy", "mpmath", "jaxtyping", "beartype")  # any version will do
SHOWN = ("numpy", "torch", "jax", "array-api-compat", "gymnasium", "mujoco")
WARNINGS = (  # of libraries about other libraries or themselves; everything else is an error
    "Guards may run slower:RuntimeWarning",  # PyTorch about Python 3.13.0
    "Call to deprecated create function:DeprecationWarning",  # the oldest tensorboardX about protobuf
    "Please use `torch.vmap` instead:FutureWarning",  # PyTorch 2.6 in its own gradcheck
)
SHORT = ("tests/conformance/test_values.py",)
LONG = (
    *("tests/conformance", "tests/gaussians", "tests/projections", "tests/families"),
    *("tests/layers_torch", "tests/layers_jax", "tests/test_engines.py", "tests/test_implicit.py"),
    *("tests/policies", "tests/rollouts", "tests/runs/test_run.py", "tests/test_cli.py"),
)


class Versions(NamedTuple):
    """A set of versions to try."""

    name: str
    python: str
    constraints: dict[str, str]  # distribution → exact version

    @property
    def folder(self) -> str:
        """The name of its environment."""
        return f"environment-{self.name}-{self.python}"


class Outcome(NamedTuple):
    """What came of one set."""

    name: str
    python: str
    installed: dict[str, str]
    passed: int
    failed: int
    skipped: int
    seconds: float
    words: str  # empty where all is well
    tried: bool = True  # False without an interpreter


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    names = list(all_sets())
    parser.add_argument("--only", nargs="+", default=names, choices=names, metavar="NAME")
    parser.add_argument("--python", nargs="+", metavar="3.X", help="with these Pythons instead of the sets' own")
    parser.add_argument("--extras", nargs="+", default=list(EXTRAS), metavar="NAME", help="extras to install")
    parser.add_argument("--short", action="store_true", help="oldest versions with the pinned PyTorch, fewer tests")
    parser.add_argument("--keep", type=Path, help="make the environments there and keep them, or use them again")
    parser.add_argument("--tests", nargs="+", metavar="FILE", help="these instead of the usual ones")
    parser.add_argument("--workers", type=int, default=2, help="processes that run tests (2)")
    parser.add_argument("--out", type=Path, help="write what was found there as JSON")
    options = parser.parse_args()
    sets = all_sets(tuple(options.extras))
    wanted = [short_set(sets["oldest"])] if options.short else [sets[name] for name in options.only]
    if options.python:
        wanted = [one._replace(python=python) for one in wanted for python in options.python]
    tests = tuple(options.tests or (SHORT if options.short else LONG))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (wheel,) = build(folder / "wheel", "--wheel", source=snapshot(folder / "tree"))
        found = []
        for versions in wanted:
            place = (options.keep or folder) / versions.folder
            found.append(attempt(versions, wheel, place, options.extras, tests, workers=options.workers))
            if not options.keep:
                shutil.rmtree(place, ignore_errors=True)
    show(found)
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps([row._asdict() for row in found], indent=1) + "\n", encoding="utf-8")
    return exit_code(found)


def exit_code(found: list[Outcome]) -> int:
    """0 where every set that could be tried passed, and there was one."""
    tried = [row for row in found if row.tried]
    return 0 if tried and not any(row.words for row in tried) else 1


def all_sets(extras: tuple[str, ...] = EXTRAS) -> dict[str, Versions]:
    """The three sets, read from pyproject.toml and constraints.txt."""
    pythons = supported_pythons()
    middle = pythons[len(pythons) // 2]
    sets = (
        Versions("oldest", pythons[0], lower_bounds(extras)),
        Versions("pinned", middle, pins()),
        Versions("newest", pythons[-1], {}),
    )
    return {found.name: found for found in sets}


def short_set(oldest: Versions) -> Versions:
    """The oldest versions with the PyTorch of constraints.txt, which is small and installed anyway."""
    return oldest._replace(name="oldest, pinned PyTorch", constraints=oldest.constraints | {"torch": pins()["torch"]})


def project() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def supported_pythons() -> list[str]:
    """The Python versions of the classifiers, oldest first."""
    found = [re.fullmatch(r"Programming Language :: Python :: (3\.\d+)", line) for line in project()["classifiers"]]
    return sorted((match[1] for match in found if match), key=Version)


def lower_bounds(extras: tuple[str, ...] = EXTRAS) -> dict[str, str]:
    """Each requirement of the plain package and of these extras, at the version behind its `>=`."""
    content = project()
    lines = [*content["dependencies"], *(line for extra in extras for line in content["optional-dependencies"][extra])]
    bounds = {}
    for needed in map(Requirement, lines):
        lowest = [part.version for part in needed.specifier if part.operator == ">="]
        if lowest:
            bounds[canonical(needed.name)] = lowest[0]
    return bounds


def pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return {canonical(name): version for name, mark, version in (line.partition("==") for line in lines) if mark}


def attempt(
    versions: Versions, wheel: Path, place: Path, extras: list[str], tests: tuple[str, ...], *, workers: int
) -> Outcome:
    """Install one set and run the tests in it."""
    start = time.perf_counter()

    def outcome(
        words: str, installed: dict[str, str] | None = None, counts: tuple[int, int, int] = (0, 0, 0)
    ) -> Outcome:
        seconds = time.perf_counter() - start
        return Outcome(versions.name, versions.python, installed or {}, *counts, seconds, words)

    interpreter = find_python(versions.python)
    if interpreter is None:
        return outcome(f"not tried: no Python {versions.python} was found")._replace(tried=False)
    python = str(place / "bin" / "python")
    if Path(python).exists():
        subprocess.run([python, "-m", "pip", "uninstall", "--quiet", "--yes", "trpl"], check=True)
    else:
        subprocess.run([interpreter, "-m", "venv", str(place)], check=True)
    limits = place / "constraints.txt"
    limits.write_text("".join(f"{name}=={version}\n" for name, version in versions.constraints.items()))
    what = [f"trpl[{','.join(extras)}] @ {wheel.as_uri()}", *TOOLS]
    done = subprocess.run(
        [python, "-m", "pip", "install", "--quiet", "-c", str(limits), *what], capture_output=True, text=True
    )
    if done.returncode:
        return outcome(f"does not install: {last_line(done.stderr)}")
    listed = subprocess.run([python, "-m", "pip", "list", "--format=json"], capture_output=True, text=True, check=True)
    installed = {canonical(row["name"]): row["version"] for row in json.loads(listed.stdout)}
    # no "-q": pyproject.toml has one, and with two pytest prints no counts
    how = ["-n", str(workers), "-m", "not slow and not stress", "-p", "no:cacheprovider", "--tb=line"]
    for warning in WARNINGS:
        how += ["-W", f"ignore:{warning}"]
    command = [python, "-m", "pytest", *how, *tests]
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}  # trpl from the wheel
    variables |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True)
    (place / "tests.log").write_text(done.stdout + done.stderr, encoding="utf-8")
    counts = tuple(count(done.stdout, word) for word in ("passed", "failed", "skipped"))
    fine = done.returncode == 0 and counts[0] > 0
    words = "" if fine else f"the tests fail: {last_line(done.stdout)}"
    return outcome(words, {name: installed[name] for name in SHOWN if name in installed}, counts)


def find_python(version: str) -> str | None:
    """An interpreter of that version that runs and can make environments."""
    program = "import ensurepip, sys, venv; print('{}.{}'.format(*sys.version_info))"
    for path in candidates(version):
        done = subprocess.run([path, "-c", program], capture_output=True, text=True)
        if done.stdout.strip() == version:
            return path
    return None


def candidates(version: str) -> Iterator[str]:
    """Paths that may be an interpreter of that version."""
    if f"{sys.version_info[0]}.{sys.version_info[1]}" == version:
        yield sys.executable
    for folder in os.get_exec_path():  # the first found may be pyenv's stand-in for a Python that is not switched on
        if named := shutil.which(f"python{version}", path=folder):
            yield named
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    yield from (str(path) for path in sorted(pyenv.glob(f"versions/{version}.*/bin/python")))
    if uv := shutil.which("uv"):
        found = subprocess.run([uv, "python", "find", version], capture_output=True, text=True)
        if found.returncode == 0:
            yield found.stdout.strip()


def count(text: str, word: str) -> int:
    """How many tests passed, failed or were skipped, from pytest's last line."""
    match = re.search(rf"(\d+) {word}", last_line(text))
    return int(match[1]) if match else 0


def last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1].strip() if lines else "no output"


def show(found: list[Outcome]) -> None:
    table = Table("versions", "Python", *SHOWN, "passed", "failed", "skipped", "seconds", "")
    for row in found:
        numbers = (str(row.passed), str(row.failed), str(row.skipped), f"{row.seconds:.0f}")
        table.add_row(row.name, row.python, *(row.installed.get(name, "–") for name in SHOWN), *numbers, row.words)
    Console(width=180).print(table)


if __name__ == "__main__":
    sys.exit(main())
