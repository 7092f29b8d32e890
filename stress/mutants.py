"""Mutation testing of the maths: small faults put into the code one at a time, and whether a test notices.

    python stress/mutants.py [--only PATTERN ...] [--sample 10] [--workers 2] [--work FOLDER] [--out stress/mutants.md]

mutmut makes the faults in a copy of the tree: numbers, operators, comparisons, conditions, arguments left out or None,
assignments of None. A first run gives each the quick tests that reach its function (PyTorch, a few seconds at most,
fastest first, up to the first failure); what survives meets the wider ones (finite differences, unrolled solvers), and
what survives these meets JAX's and the compilers' (jit, vmap, scan, torch.compile): some branches only they take. A
whole run with the same `--work` goes on where it stopped. `--sample N` takes N faults of each file at random, always
the same ones. At the end survivors are listed with the reason that stress/survivors.toml knows for each. Exit code 1 if
fewer than 92 % are killed, or if a survivor has no reason.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import NamedTuple

from mutmut.stats import status_by_exit_code

ROOT = Path(__file__).parent.parent
FILES = [
    *("src/trpl/engines/*", "src/trpl/matrix_roots.py", "src/trpl/special.py"),
    *("src/trpl/implicit/*", "src/trpl/linalg.py", "src/trpl/roots.py", "src/trpl/gaussians/*"),
    *("src/trpl/projections/*", "src/trpl/projections/*/*", "src/trpl/natural/*", "src/trpl/families/*"),
    "src/trpl/layers/*",
    "src/trpl/losses.py",
]
LEAST = 0.92
KILLED = {"killed", "timeout", "segfault", "suspicious"}
QUICK = [
    "tests/test_roots.py",
    "tests/test_engines.py",
    "tests/test_implicit.py",
    "tests/gaussians",
    "tests/projections/test_power_series.py",
    "tests/projections/test_joint_terms.py",
    "tests/projections/test_door.py",
    "tests/projections/test_door_details.py",
    "tests/projections/test_one_gradient.py",
    "tests/projections/test_near_the_bound.py",
    "tests/projections/test_entropy_given.py",
    "tests/projections/test_unrolled.py",
    "tests/layers_torch/test_torch_transformations.py",
    "tests/layers_torch/test_numpy_in_its_place.py",
    "tests/families",
    "tests/conformance",
    "tests/algorithms/test_losses.py",
    "tests/algorithms/test_losses_both_ways.py",
]
WIDE = [*QUICK, "tests/test_linalg.py"]
TRACED = ["tests/layers_jax", "tests/layers_torch/test_torch_transformations.py", "tests/conformance", "tests/families"]
"""What sees the faults in branches that only a traced engine takes."""
TORCH = "not jax and not jit and not frameworks and not compile and not cuda"
FAST = f"{TORCH} and not finite and not unrolled and not powers and not any_eigenvalues"
CONFIG = """
[tool.mutmut]
source_paths = ["src/"]
only_mutate = {files}
process_isolation = "forkserver"
use_setproctitle = false
do_not_mutate_patterns = ['raise \\w+', 'def _show', 'def _framework']
pytest_add_cli_args_test_selection = {tests}
pytest_add_cli_args = ["-p", "no:cacheprovider", "-p", "no:unraisableexception", "-p", "swift", "-k", {words}]
timeout_constant = 60.0
"""

PLUGIN = """
import gc
import pytest

pytest.Item._nodeid = property(lambda item: item.nodeid)  # the name that mutmut 3.8 knows from before pytest 9.2
gc.disable()  # two collections of all of PyTorch and JAX would be most of the time that a quick test takes
"""

Verdicts = dict[str, dict[str, str]]  # by file and fault


class Survivor(NamedTuple):
    """A fault that no test noticed."""

    name: str
    function: str
    file: str
    line: int
    was: str
    becomes: str


def prepare(work: Path) -> None:
    """The tree as it is now, in the copy; what was found before stays there."""
    for name in ("src", "tests"):
        shutil.rmtree(work / name, ignore_errors=True)
        shutil.copytree(ROOT / name, work / name, ignore=shutil.ignore_patterns("__pycache__"))
    (work / "mutants" / "src").mkdir(parents=True, exist_ok=True)  # a place that Python has not found it forgets
    (work / "plugins").mkdir(exist_ok=True)
    (work / "plugins" / "swift.py").write_text(PLUGIN)


GENERATE = """
from mutmut.__main__ import *
from mutmut.__main__ import setup_source_paths
set_mutant_under_test("mutant_generation")
makedirs(Path("mutants"), exist_ok=True)
copy_src_dir(), copy_also_copy_files(), setup_source_paths(), store_lines_covered_by_tests(), create_mutants(1)
"""


def drawn(work: Path, files: list[str], number: int) -> list[str]:
    """So many faults of each file, at random, the same ones every time."""
    prepare(work)
    settings = {"files": json.dumps(files), "tests": json.dumps(QUICK), "words": json.dumps(FAST)}
    (work / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text() + CONFIG.format(**settings))
    subprocess.run([sys.executable, "-c", GENERATE], cwd=work, check=True, capture_output=True)
    found = []
    for path in sorted((work / "mutants" / "src").rglob("*.meta")):
        names = sorted(json.loads(path.read_text())["exit_code_by_key"])
        found += random.Random(path.name).sample(names, min(number, len(names)))
    return found


def run_mutmut(
    work: Path, *, files: list[str], tests: list[str], words: str, names: Iterable[str], workers: int
) -> Verdicts:
    """One round: the faults by name, or all that have no verdict yet."""
    prepare(work)
    settings = {"files": json.dumps(files), "tests": json.dumps(tests), "words": json.dumps(words)}
    (work / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text() + CONFIG.format(**settings))
    one_thread = {
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false",
    }
    path = os.pathsep.join(map(str, (work / "mutants" / "src", work / "plugins")))
    mutmut = Path(sys.executable).parent / "mutmut"
    command = [str(mutmut), "run", "--max-children", str(workers), *names]
    done = subprocess.run(command, cwd=work, env=os.environ | one_thread | {"PYTHONPATH": path})
    if done.returncode:
        raise SystemExit(f"mutmut ended with {done.returncode}")
    return verdicts(work)


def verdicts(work: Path) -> Verdicts:
    """By file and fault: killed, survived, no tests, timeout, …"""
    found = {}
    for path in sorted((work / "mutants" / "src").rglob("*.meta")):
        codes = json.loads(path.read_text())["exit_code_by_key"]
        if any(code is not None for code in codes.values()):
            file = str(path.relative_to(work / "mutants")).removesuffix(".meta")
            found[file] = {name: status_by_exit_code[code] for name, code in codes.items() if code is not None}
    return found


def survivors(work: Path, found_by: Verdicts) -> list[Survivor]:
    """What was not killed, with the line it changes."""
    found = []
    for file, by_name in found_by.items():
        source = (work / file).read_text().splitlines()
        functions = functions_in(work / "mutants" / file)
        for name in (name for name, verdict in by_name.items() if verdict not in KILLED):
            fault = name.rpartition(".")[2]
            whole = f"{fault.rpartition('__mutmut_')[0]}__mutmut_orig"
            found.append(located(name, file, functions[whole], functions[fault], source))
    return sorted(found, key=lambda s: (s.file, s.line, s.becomes))


def functions_in(file: Path) -> dict[str, list[str]]:
    """The lines of every function, by its name: mutmut writes each fault as a function beside the whole one."""
    text = file.read_text()
    lines = text.splitlines()
    nodes = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef))
    return {node.name: lines[node.lineno - 1 : node.end_lineno] for node in nodes}


def located(name: str, file: str, whole: list[str], faulty: list[str], source: list[str]) -> Survivor:
    """The place of a fault, from what it changes in its function."""
    changes = list(difflib.ndiff(whole[1:], faulty[1:]))
    removed, added = ([line[2:].strip() for line in changes if line.startswith(sign)] for sign in ("- ", "+ "))
    function = re.sub(r"^x_|^xǁ\w+?ǁ", "", name.rpartition(".")[2]).partition("__mutmut")[0]
    start = next((i for i, line in enumerate(source) if re.match(rf"\s*def {function}\b", line)), 0)
    was = removed[0] if removed else ""
    line = next((i for i, text in enumerate(source[start:], start + 1) if text.strip() == was), start + 1)
    return Survivor(name, function, file, line, " ".join(removed), " ".join(added))


def known_reasons() -> list[dict]:
    """Why survivors are none to worry about: of a whole kind, or of one line."""
    path = Path(__file__).parent / "survivors.toml"
    return tomllib.loads(path.read_text())["survivor"] if path.exists() else []


def reason_for(survivor: Survivor, known: list[dict]) -> str | None:
    """The first reason whose file, function, line, result and patterns all fit, as far as it names them."""
    for entry in known:
        fits = (
            entry.get("file", survivor.file) == survivor.file
            and entry.get("function", survivor.function) == survivor.function
            and entry.get("was", survivor.was) == survivor.was
            and survivor.becomes in entry.get("becomes", [survivor.becomes])
            and re.search(entry.get("line", ""), survivor.was)
            and re.search(entry.get("change", ""), f"{survivor.was} => {survivor.becomes}")
        )
        if fits:
            return entry["reason"]
    return None


def report(work: Path, found_by: Verdicts, *, sample: int | None = None) -> tuple[str, bool]:
    """The table and the survivors as Markdown, and whether all is well."""
    known, counts = known_reasons(), {}
    for file, by_name in found_by.items():
        counts[f"`{file}`"] = len(by_name), sum(verdict in KILLED for verdict in by_name.values())
    total, killed = (sum(column) for column in zip(*counts.values(), strict=True))
    command = "python stress/mutants.py" + (f" --sample {sample}" if sample else "")
    taken = f" A random sample: {sample} faults of each file, or all where it has fewer." if sample else ""
    lines = ["# Mutants", "", f"Made by `{command}`.{taken} Killed counts time-outs and crashes.", ""]
    lines += ["| File | Mutants | Killed | Survived | Share killed |", "| --- | ---: | ---: | ---: | ---: |"]
    for file, (made, dead) in (counts | {"**all**": (total, killed)}).items():
        lines.append(f"| {file} | {made} | {dead} | {made - dead} | {dead / made:.1%} |")
    lines += ["", "## Survivors", "", "| Place | Was | Becomes | Reason |", "| --- | --- | --- | --- |"]
    unexplained = 0
    for s in survivors(work, found_by):
        reason = reason_for(s, known)
        unexplained += reason is None
        was, becomes = (f"`{text.replace('|', chr(92) + '|')}`" for text in (s.was, s.becomes))
        place = f"{s.file.removeprefix('src/trpl/')}:{s.line}"
        lines.append(f"| {place} | {was} | {becomes} | {reason or '**none yet**'} |")
    return "\n".join(lines) + "\n", killed >= LEAST * total and not unexplained


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", nargs="+", default=FILES, metavar="PATTERN", help="files to put faults into")
    parser.add_argument("--work", type=Path, help="folder of the copy, kept; without it a temporary one")
    parser.add_argument("--out", type=Path, default=ROOT / "stress" / "mutants.md")
    parser.add_argument("--sample", type=int, metavar="N", help="only N faults of each file, drawn at random")
    parser.add_argument("--workers", type=int, default=1, help="how many at a time")
    parser.add_argument("--quick", action="store_true", help="leave out the wider tests for what survives")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        work = (options.work or Path(name)).resolve()
        sample = drawn(work / "quick", options.only, options.sample) if options.sample else []
        run = partial(run_mutmut, files=options.only, workers=options.workers)
        found = run(work / "quick", tests=QUICK, words=FAST, names=sample)
        for name, tests, words in (("wide", WIDE, TORCH), ("traced", TRACED, f"not ({TORCH})")):
            left = [name for by_name in found.values() for name, v in by_name.items() if v not in KILLED]
            if left and not options.quick:
                wider = run(work / name, tests=tests, words=words, names=left)
                found = {file: by_name | wider.get(file, {}) for file, by_name in found.items()}
        text, well = report(work / "quick", found, sample=options.sample)
    options.out.write_text(text)
    print(text)
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
