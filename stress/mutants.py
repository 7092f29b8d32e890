"""Mutation testing of the maths: small faults put into the code one at a time, and whether a test notices.

    python stress/mutants.py [--sample 650] [--only PATTERN ...] [--work FOLDER] [--out stress/mutants.md]

mutmut thinks of the faults: numbers, operators, comparisons, conditions, arguments left out or None, assignments of
None. `stress/fork_server.py` tries them: everything is imported and collected once, each test is run once to see which
lines it reaches and how long it takes, and each fault then meets, in a fork of its own, the tests that reach its line,
the cheapest first, up to the first failure. What survives PyTorch's tests meets JAX's and the compilers' (jit, vmap,
scan, torch.compile): some branches only they take. `--sample N` takes N faults, evenly spread over all of them, always
the same ones. With `--work` a run goes on where it stopped, on the source of its start; tests written since then are
tried on what had survived. Exit code 1 if fewer than 92 % are killed, or if a survivor has no reason in
stress/survivors.toml.
"""

from __future__ import annotations

import argparse
import difflib
import fnmatch
import hashlib
import json
import math
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections import Counter
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
FILES = [
    *("src/trpl/engines/*", "src/trpl/matrix_roots.py", "src/trpl/special.py"),
    *("src/trpl/implicit/*", "src/trpl/linalg.py", "src/trpl/roots.py", "src/trpl/gaussians/*"),
    *("src/trpl/projections/*", "src/trpl/natural/*", "src/trpl/families/*", "src/trpl/layers/*"),
    "src/trpl/losses.py",
]
LEAST = 0.92
CONFIG = """
[tool.mutmut]
source_paths = ["src/"]
do_not_mutate_patterns = ['raise \\w+', 'def _show', 'def _framework']
"""


class Mutant(NamedTuple):
    """A fault: the function it is in, its number there, the line it changes, and the source of the file with it."""

    name: str
    file: str
    function: str
    line: int
    was: str
    becomes: str
    source: str


def prepare(work: Path) -> str:
    """Copy the tree; source and commit stay those of the first run, tests are today's."""
    work.mkdir(parents=True, exist_ok=True)
    if not (work / "commit").exists():
        shutil.copytree(ROOT / "src", work / "src", ignore=shutil.ignore_patterns("__pycache__"))
        (work / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text() + CONFIG)
        asked = ["git", "-C", str(ROOT), "rev-parse", "--short=10", "HEAD"]
        (work / "commit").write_text(subprocess.run(asked, capture_output=True, text=True).stdout.strip())
    for name in ("tests", "stress"):
        shutil.rmtree(work / name, ignore_errors=True)
        shutil.copytree(ROOT / name, work / name, ignore=shutil.ignore_patterns("__pycache__"))
    return (work / "commit").read_text()


def mutants(work: Path, patterns: list[str], number: int | None) -> tuple[list[Mutant], int]:
    """Faults to try, and how many there are: all, or `number` of them evenly spread, the same ones every time."""
    kept = work / f"drawn-{number}-{hashlib.sha256(repr(patterns).encode()).hexdigest()[:8]}.json"
    if kept.exists():
        made, total = json.loads(kept.read_text())
        return [Mutant(*fields) for fields in made], total
    os.chdir(work)  # where mutmut looks for its settings
    import libcst as cst
    from mutmut.mutation.file_mutation import create_mutations, deep_replace

    files = [str(path.relative_to(work)) for path in sorted((work / "src").rglob("*.py"))]
    found = []
    for file in (f for f in files if any(fnmatch.fnmatch(f, pattern) for pattern in patterns)):
        module, mutations, *_ = create_mutations(file, (work / file).read_text())
        numbers: Counter[str] = Counter()
        for mutation in mutations:
            if isinstance(function := mutation.contained_by_top_level_function, cst.FunctionDef):
                numbers[function.name.value] += 1
                found.append((file, module, mutation, f"{file}:{function.name.value}:{numbers[function.name.value]}"))
    step = len(found) / min(number or len(found), len(found))
    drawn = [found[int((i + 0.5) * step)] for i in range(round(len(found) / step))]
    made = []
    for file, module, mutation, name in drawn:
        changed = deep_replace(module, mutation.original_node, mutation.mutated_node)
        assert isinstance(changed, cst.Module)
        made.append(located(name, file, module.code, changed.code))
    random.Random(0).shuffle(made)  # a run that is stopped has tried a sample of the sample
    kept.write_text(json.dumps([made, len(found)]))
    return made, len(found)


def located(name: str, file: str, before: str, after: str) -> Mutant:
    """A fault with its place, from what it changes."""
    lines, others = before.splitlines(), after.splitlines()
    parts = difflib.SequenceMatcher(None, lines, others, autojunk=False).get_opcodes()
    _, first, last, start, end = next(part for part in parts if part[0] != "equal")
    was, becomes = (" ".join(x.strip() for x in text) for text in (lines[first:last], others[start:end]))
    return Mutant(name, file, name.split(":")[1], first + 1, was, becomes, after)


def try_them(work: Path, tried: list[Mutant], *, traced: bool, options: argparse.Namespace) -> dict[str, dict]:
    """Run the fork server over the faults; its verdicts by name."""
    (work / "mutants.json").write_text(json.dumps([mutant._asdict() for mutant in tried]))
    one_thread = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    quiet = {"XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false", "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    kept = {"JAX_COMPILATION_CACHE_DIR": str(work / "compiled"), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    environment = os.environ | one_thread | quiet | kept | {"PYTHONPATH": str(work / "src"), "PYTHONHASHSEED": "0"}
    command = [sys.executable, "stress/fork_server.py", "--seconds", str(options.seconds), *["--traced"] * traced]
    command += ["--each", str(options.each)]
    command += ["--minutes", str(options.minutes)] if options.minutes else []
    command += options.tests or []
    done = subprocess.run(command, cwd=work, env=environment)
    if done.returncode:
        raise SystemExit(f"the fork server ended with {done.returncode}")
    return verdicts(work)


def verdicts(work: Path) -> dict[str, dict]:
    """The last word on each fault."""
    path = work / "verdicts.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return {entry["name"]: entry for entry in map(json.loads, lines)}


def known_reasons() -> list[dict]:
    """Why survivors are none to worry about: of a whole kind, or of one line."""
    path = Path(__file__).parent / "survivors.toml"
    return tomllib.loads(path.read_text())["survivor"] if path.exists() else []


def reason_for(survivor: Mutant, known: list[dict]) -> str | None:
    """The first reason whose file, function, line, result and patterns all fit, as far as it names them."""
    for entry in known:
        fits = (
            entry.get("file", survivor.file) == survivor.file
            and entry.get("function", survivor.function) == survivor.function
            and entry.get("was", survivor.was) == survivor.was
            and survivor.becomes in entry.get("becomes", [survivor.becomes])
            and re.search(entry.get("line", ""), survivor.was)
            and re.search(entry.get("change", ""), f"{survivor.was} => {survivor.becomes}")
            and re.fullmatch(entry.get("swap", ".*"), swapped(survivor.was, survivor.becomes))
        )
        if fits:
            return entry["reason"]
    return None


def swapped(was: str, becomes: str) -> str:
    """What differs, as "old words => new words" without what is the same on both sides."""
    one, two = (re.findall(r"[\w.]+|[^\w\s.]+|[^\s]", text) for text in (was, becomes))
    start = shared(one, two)
    one, two = one[start:], two[start:]
    end = shared(one[::-1], two[::-1])
    return " ".join(one[: len(one) - end]) + " => " + " ".join(two[: len(two) - end])


def shared(one: list[str], two: list[str]) -> int:
    """How many words are the same at the beginning."""
    pairs = enumerate(zip(one, two, strict=False))
    return next((i for i, (x, y) in pairs if x != y), min(len(one), len(two)))


def interval(killed: int, total: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share."""
    z, share = 1.96, killed / total
    middle, half = share + z * z / (2 * total), z * math.sqrt(share * (1 - share) / total + z * z / (4 * total**2))
    return tuple((middle + sign * half) / (1 + z * z / total) for sign in (-1, 1))


def report(tried: list[Mutant], found: dict[str, dict], *, made: int, commit: str, command: str) -> tuple[str, bool]:
    """The table and the survivors as Markdown, and whether all is well."""
    judged = [mutant for mutant in tried if mutant.name in found]
    left = [mutant for mutant in judged if found[mutant.name]["verdict"] == "survived"]
    total, killed = max(1, len(judged)), len(judged) - len(left)
    low, high = interval(killed, total)
    how = f"{total} of {made} faults, drawn evenly from all files: " if total < made else ""
    lines = ["# Mutants", "", f"Made by `{command}` on commit {commit}. Killed counts time-outs and crashes."]
    lines += ["", f"{how}{killed} of {total} killed, {killed / total:.1%} (95 % interval {low:.1%} to {high:.1%})."]
    lines += ["", "| File | Mutants | Killed | Survived |", "| --- | ---: | ---: | ---: |"]
    all_of, dead_of = (Counter(mutant.file for mutant in some) for some in (judged, left))
    lines += [f"| `{file}` | {n} | {n - dead_of[file]} | {dead_of[file]} |" for file, n in all_of.items()]
    lines += ["", "## Survivors", "", "| Place | Was | Becomes | Reason |", "| --- | --- | --- | --- |"]
    known = known_reasons()
    reasons = [reason_for(mutant, known) for mutant in left]
    for mutant, reason in zip(left, reasons, strict=True):
        was, becomes = (f"`{text.replace('|', chr(92) + '|')}`" for text in (mutant.was, mutant.becomes))
        place = f"{mutant.file.removeprefix('src/trpl/')}:{mutant.line}"
        lines.append(f"| {place} | {was} | {becomes} | {reason or '**none yet**'} |")
    return "\n".join(lines) + "\n", killed >= LEAST * total and None not in reasons


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", nargs="+", default=FILES, metavar="PATTERN", help="files to put faults into")
    parser.add_argument("--work", type=Path, help="folder of the copy, kept; without it a temporary one")
    parser.add_argument("--out", type=Path, default=ROOT / "stress" / "mutants.md")
    parser.add_argument("--sample", type=int, metavar="N", help="only N faults, evenly spread")
    parser.add_argument("--seconds", type=float, default=15.0, help="of tests for each fault and round, at most")
    parser.add_argument("--minutes", type=float, help="stop after so many in each round; --work goes on later")
    parser.add_argument("--each", type=int, default=1000, help="parameters of each test to try, at most")
    parser.add_argument("--tests", nargs="+", metavar="PATH", help="tests to try, instead of all of the maths")
    parser.add_argument("--rounds", nargs="*", default=["eager", "traced"], help="whose tests; none writes the report")
    options = parser.parse_args()
    out = options.out.resolve()
    with tempfile.TemporaryDirectory() as name:
        work = (options.work or Path(name)).resolve()
        commit = prepare(work)
        tried, made = mutants(work, options.only, options.sample)
        found = verdicts(work)
        for traced in (name == "traced" for name in options.rounds):
            left = [m for m in tried if found.get(m.name, {"verdict": "survived"})["verdict"] == "survived"]
            found = try_them(work, left, traced=traced, options=options)
    command = "python stress/mutants.py" + (f" --sample {options.sample}" if options.sample else "")
    text, well = report(tried, found, made=made, commit=commit, command=command)
    out.write_text(text)
    print(text)
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
