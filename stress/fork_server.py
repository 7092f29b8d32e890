"""Try faults on tests that reach them, each in a fork of a process that has imported and collected everything.

    python stress/fork_server.py [--traced] [--seconds 15] [--minutes 10]

Run by `stress/mutants.py` in its copy of the tree. `mutants.json` holds the faults; `reached.jsonl` keeps lines and
time of each test, `verdicts.jsonl` what became of each fault. A fault is put in by giving the function that is there
the other's code, so decorated, imported and registered functions have it too. With `--traced` the tests are those of
JAX and of compilers, otherwise all others.
"""

from __future__ import annotations

import argparse
import ast
import gc
import hashlib
import importlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import traceback
import types
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from _pytest.runner import runtestprotocol

TESTS = [
    *("tests/test_roots.py", "tests/test_engines.py", "tests/test_implicit.py", "tests/test_linalg.py"),
    *("tests/test_matrix_roots.py", "tests/test_special.py", "tests/test_engine_operations.py"),
    *("tests/gaussians", "tests/projections", "tests/families", "tests/language", "tests/conformance"),
    *("tests/layers_torch", "tests/layers_jax", "tests/compat", "tests/policies/test_heads.py"),
    *("tests/algorithms/test_losses.py", "tests/algorithms/test_losses_both_ways.py"),
    "tests/algorithms/test_loss_terms.py",
]
AT_IMPORT = ["tests/test_engine_operations.py", "tests/test_engines.py", "tests/test_matrix_roots.py"]
TRACED = re.compile("jax|jit|frameworks|compile")
DEAR = re.compile(r"conformance/test_(values|penalty).*jax.*float32|conformance.*(rows_do_not_mix|twice_is_once).*jax")
"""Tests of JAX that compile for long and show what others show."""


class Server:
    """A pytest plugin in the place of the loop over tests."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.importing = lines_from_now_on()
        self.until = time.monotonic() + 60 * options.minutes if options.minutes else float("inf")

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        jax = sys.modules.get("jax._src.xla_bridge")
        if jax is not None and jax.backends_are_initialized():
            raise SystemExit("a test file computes with JAX while it is imported: a fork of JAX's threads would hang")
        self.at_import = self.importing()
        from hypothesis import Phase, settings

        settings.register_profile("faults", phases=[Phase.explicit, Phase.generate], database=None)  # no shrinking
        settings.load_profile("faults")
        items = [item for item in session.items if wanted(item, traced=self.options.traced)]
        known = {key.rpartition("@")[0] for key in records("reached.jsonl", "key")}
        chosen = [item for item in items if item.nodeid in known] + some_of_each(items, self.options.each)
        self.items = {item.nodeid: item for item in chosen}
        self.keys = {name: f"{name}@{digest(Path(item.path))}" for name, item in self.items.items()}
        if self.options.traced:
            import torch._dynamo.symbolic_convert  # noqa: F401
        for mutant in records_of_mutants():
            importlib.import_module(mutant["file"].removeprefix("src/").removesuffix(".py").replace("/", "."))
        self.functions = live_functions()
        gc.collect()
        gc.freeze()
        gc.disable()  # a collection of all of PyTorch and JAX would take longer than a quick test
        self.reached = self.recorded()
        self.try_all()
        return True

    def recorded(self) -> dict[str, dict]:
        """Lines and seconds of every test, by its key; what is not known yet is found out."""
        path, known = Path("reached.jsonl"), records("reached.jsonl", "key")
        new = [name for name, key in self.keys.items() if key not in known]
        print(f"{len(self.items)} tests, {len(new)} of them new", flush=True)
        together = 1 if self.options.traced else 40  # what one test has compiled, the next would not trace again
        for start in range(0, len(new), together):
            if time.monotonic() > self.until:
                break
            scratch, some = Path(f"reached-{os.getpid()}.jsonl"), new[start : start + together]
            forked(lambda some=some, scratch=scratch: self.record(some, scratch), seconds=600.0)
            entries = [json.loads(line) for line in scratch.read_text().splitlines()] if scratch.exists() else []
            scratch.unlink(missing_ok=True)
            entries += [{"key": self.keys[n], "seconds": None, "lines": {}} for n in some[len(entries) :][:1]]
            known |= {entry["key"]: entry for entry in entries}
            with path.open("a") as file:
                file.writelines(json.dumps(entry) + "\n" for entry in entries)
            print(f"reached: {start + len(some)} of {len(new)}", flush=True)
        passing = {key: entry for key, entry in known.items() if entry["seconds"] is not None}
        return {name: passing[key] for name, key in self.keys.items() if key in passing}

    def record(self, names: list[str], scratch: Path) -> int:
        """Run tests under coverage and note lines and time of each that passes."""
        import coverage

        symbolic = lines_of_dynamo() if self.options.traced else {}
        watch = coverage.Coverage(data_file=None, config_file=False, include=[f"{Path.cwd()}/src/trpl/*"])
        watch.set_option("run:disable_warnings", ["no-data-collected"])
        for name, following in zip(names, [*names[1:], None], strict=True):
            watch.erase()
            begin = time.process_time()
            watch.start()
            good = self.passes(name, following)
            watch.stop()
            seconds, data = time.process_time() - begin, watch.get_data()
            lines = {file: set(data.lines(file) or ()) | symbolic.pop(file, set()) for file in data.measured_files()}
            found = {os.path.relpath(file): sorted(numbers) for file, numbers in {**lines, **symbolic}.items()}
            entry = {"key": self.keys[name], "seconds": seconds if good else None, "lines": found}
            with scratch.open("a") as file:
                file.write(json.dumps(entry) + "\n")
        return 0

    def passes(self, name: str, following: str | None = None) -> bool:
        """Run one test with its fixtures; a skipped one has not passed."""
        reports = runtestprotocol(self.items[name], log=False, nextitem=self.items[following] if following else None)
        return all(report.passed for report in reports)

    def try_all(self) -> None:
        """Give every fault the tests that it has not met."""
        path, known = Path("verdicts.jsonl"), records("verdicts.jsonl", "name")
        mutants = records_of_mutants()
        counts: Counter[str] = Counter()
        for number, mutant in enumerate(mutants):
            if time.monotonic() > self.until:
                break
            before = known.get(mutant["name"], {"tried": [], "verdict": "survived"})
            met = set(before["tried"])
            tests = [name for name in self.tests_for(mutant) if self.keys[name] not in met]
            begin, scratch = time.monotonic(), Path(f"trying-{os.getpid()}")
            status = forked(lambda m=mutant, t=tests, s=scratch: self.attempt(m, t, s)) if tests else SURVIVED
            last = scratch.read_text() if scratch.exists() else ""
            scratch.unlink(missing_ok=True)
            if status == SURVIVED and not met and self.at_import.get(mutant["file"], set()) & lines_of(mutant):
                status, last = self.afresh(mutant), "a process of its own"
            verdict = VERDICTS.get(status, f"crashed {status}")
            entry = {"name": mutant["name"], "verdict": verdict, "by": last, "seconds": time.monotonic() - begin}
            entry["tried"] = [*before["tried"], *(self.keys[t] for t in tests)] if verdict == "survived" else []
            with path.open("a") as file:
                file.write(json.dumps(entry) + "\n")
            counts[verdict] += 1
            place = f"{mutant['file']}:{mutant['line']}"
            print(
                f"{number + 1}/{len(mutants)} {entry['seconds']:.1f} s {verdict} {len(tests)} {place} {last}",
                flush=True,
            )
        print(dict(counts), flush=True)

    def afresh(self, mutant: dict) -> int:
        """Give a fault that acts while modules are imported a process of its own, with the engines' tests."""
        shutil.copytree("src", "fresh/src", dirs_exist_ok=True)
        file = Path("fresh", mutant["file"])
        file.write_text(mutant["source"])
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-m", "not slow", *AT_IMPORT]
        environment = os.environ | {"PYTHONPATH": str(Path("fresh/src").resolve())}
        done = subprocess.run(command, env=environment, capture_output=True)
        file.write_text(Path(mutant["file"]).read_text())
        return KILLED if done.returncode else SURVIVED

    def tests_for(self, mutant: dict) -> list[str]:
        """Tests that reach the line: cheap ones first, further parameters of each later, as many as time allows."""
        wanted_lines = lines_of(mutant)
        reaching = [n for n, r in self.reached.items() if wanted_lines & set(r["lines"].get(mutant["file"], ()))]
        seconds = {name: max(self.reached[name]["seconds"], 0.005) for name in reaching}
        rank: Counter[str] = Counter()
        cost = {}
        for name in sorted(reaching, key=seconds.__getitem__):
            rank[name.partition("[")[0]] += 1
            cost[name] = seconds[name] * rank[name.partition("[")[0]]
        chosen, total = [], 0.0
        for name in sorted(reaching, key=cost.__getitem__):
            total += seconds[name]
            if total > self.options.seconds and chosen:
                break
            chosen.append(name)
        return chosen

    def attempt(self, mutant: dict, tests: list[str], scratch: Path) -> int:
        """Put the fault in and run the tests up to the first that fails."""
        try:
            put_in(mutant, self.functions)
        except UNFIT as error:
            scratch.write_text(f"{type(error).__name__}: {error}")
            return UNTRIED
        for name, following in zip(tests, [*tests[1:], None], strict=True):
            scratch.write_text(name)
            signal.setitimer(signal.ITIMER_PROF, 10.0 + 5.0 * self.reached[name]["seconds"])  # processor time
            signal.alarm(int(120 + 20.0 * self.reached[name]["seconds"]))
            if not self.passes(name, following):
                return KILLED
        return SURVIVED


SURVIVED, KILLED, UNTRIED = 10, 11, 12
UNFIT = (ValueError, LookupError, SyntaxError)
VERDICTS = {
    **{SURVIVED: "survived", KILLED: "killed", UNTRIED: "untried"},
    **{-signal.SIGALRM: "timeout", -signal.SIGPROF: "timeout"},
}


def records(file: str, key: str) -> dict[str, dict]:
    """The last line of each in a file of JSON lines."""
    lines = Path(file).read_text().splitlines() if Path(file).exists() else []
    return {entry[key]: entry for entry in map(json.loads, lines)}


def records_of_mutants() -> list[dict]:
    """The faults to try."""
    return json.loads(Path("mutants.json").read_text())


def wanted(item: pytest.Item, *, traced: bool) -> bool:
    """Whether a test belongs to this round."""
    if item.get_closest_marker("slow") or item.get_closest_marker("stress") or "cuda" in item.nodeid:
        return False
    return bool(TRACED.search(item.nodeid)) == traced and not DEAR.search(item.nodeid)


def some_of_each(items: list[pytest.Item], most: int) -> list[pytest.Item]:
    """At most so many parameters of each test, evenly spread."""
    groups = defaultdict(list)
    for item in items:
        groups[item.nodeid.partition("[")[0]].append(item)
    step = {name: max(1.0, len(group) / most) for name, group in groups.items()}
    return [group[int(i * step[name])] for name, group in groups.items() for i in range(min(most, len(group)))]


def digest(file: Path) -> str:
    """A few digits that change with a file."""
    return hashlib.sha256(file.read_bytes()).hexdigest()[:8]


def forked(work: Callable[[], int], seconds: float | None = None) -> int:
    """Do it in a fork: its exit code, or the negative number of the signal that ended it."""
    child = os.fork()
    if child == 0:
        status = 99
        try:
            quiet = os.open(os.devnull, os.O_WRONLY)
            os.dup2(quiet, 1)
            if seconds:
                signal.alarm(int(seconds))
            status = work()
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def live_functions() -> dict[tuple[str, str], list[types.FunctionType]]:
    """Every function of the package that is there now, by file and qualified name."""
    root, found = f"{Path.cwd()}/", defaultdict(list)
    for thing in gc.get_objects():
        if type(thing) is types.FunctionType and thing.__code__.co_filename.startswith(f"{root}src/trpl/"):
            found[thing.__code__.co_filename.removeprefix(root), thing.__code__.co_qualname].append(thing)
    return found


def put_in(mutant: dict, functions: dict[tuple[str, str], list[types.FunctionType]]) -> None:
    """Give the function that is there the code, and the defaults, of the one with the fault."""
    before, after = (ast.parse(text) for text in (Path(mutant["file"]).read_text(), mutant["source"]))
    line = mutant["line"]
    name = next(name for name, node in definitions(before) if node.lineno <= line <= (node.end_lineno or 0))
    faulty = next(node for other, node in definitions(after) if other == name)
    path = str(Path(mutant["file"]).resolve())
    code = next(c for c in codes(compile(mutant["source"], path, "exec")) if c.co_qualname == name)
    there = functions.get((mutant["file"], name), [])
    if not there:
        raise LookupError(f"no function {name} is loaded")
    for function in there:
        function.__code__ = code
        values = [eval(ast.unparse(d), function.__globals__) for d in faulty.args.defaults]
        named = zip(faulty.args.kwonlyargs, faulty.args.kw_defaults, strict=True)
        function.__defaults__ = tuple(values) or None
        function.__kwdefaults__ = {a.arg: eval(ast.unparse(d), function.__globals__) for a, d in named if d} or None


def definitions(tree: ast.Module) -> Iterator[tuple[str, ast.FunctionDef]]:
    """Functions of a module and methods of its classes, with their qualified names."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            yield node.name, node
        if isinstance(node, ast.ClassDef):
            yield from ((f"{node.name}.{n.name}", n) for n in node.body if isinstance(n, ast.FunctionDef))


def codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """A code object and all within it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from codes(constant)


def statement_lines(source: str, line: int) -> set[int]:
    """Lines of the innermost statement at a line; of a compound one its head, of a function everything."""
    found = set[int]()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.stmt) and node.lineno <= line <= (node.end_lineno or 0):
            body = getattr(node, "body", None) or getattr(node, "cases", None)
            if isinstance(node, ast.ClassDef) or (body and line >= first_line(body[0])):
                continue
            whole = isinstance(node, ast.FunctionDef) or not body
            end = node.end_lineno if whole else first_line(body[0]) - 1
            found = set(range(node.lineno + (isinstance(node, ast.FunctionDef)), (end or node.lineno) + 1))
    return found


def lines_of(mutant: dict) -> set[int]:
    """Lines of the statement that a fault is in."""
    return statement_lines(Path(mutant["file"]).read_text(), mutant["line"])


def lines_from_now_on() -> Callable[[], dict[str, set[int]]]:
    """Begin to watch; the function that is returned ends it and gives the lines run since, by file."""
    import coverage

    watch = coverage.Coverage(data_file=None, config_file=False, include=[f"{Path.cwd()}/src/trpl/*"])
    watch.start()

    def end() -> dict[str, set[int]]:
        watch.stop()
        data = watch.get_data()
        return {os.path.relpath(file): set(data.lines(file) or ()) for file in data.measured_files()}

    return end


def first_line(node: ast.AST) -> int:
    """Where a statement or a case begins."""
    return node.lineno if isinstance(node, ast.stmt) else node.pattern.lineno


def lines_of_dynamo() -> dict[str, set[int]]:
    """Lines that `torch.compile` follows without running them, by file, as they are met."""
    found: dict[str, set[int]] = defaultdict(set)
    from torch._dynamo.symbolic_convert import InstructionTranslatorBase as Translator

    before = Translator.starts_line

    def starts_line(self, lineno):
        if "/src/trpl/" in self.f_code.co_filename:
            found[self.f_code.co_filename].add(lineno)
        return before(self, lineno)

    Translator.starts_line = starts_line
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--traced", action="store_true")
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--minutes", type=float)
    parser.add_argument("--each", type=int, default=1000)
    parser.add_argument("tests", nargs="*", default=TESTS)
    options = parser.parse_args()
    there = [path for path in options.tests if Path(path).exists()]
    arguments = ["-q", "-p", "no:cacheprovider", "-p", "no:unraisableexception", "-s", "--rootdir=.", *there]
    return int(pytest.main(arguments, plugins=[Server(options)]))


if __name__ == "__main__":
    sys.exit(main())
