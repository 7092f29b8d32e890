"""Bad files thrown at everything that reads one: a message of trpl's own or a result, never an error from the depths.

    python stress/files.py [--seed N] [--cases 100000] [--only config,...] [--out FILE.json]

A case is a file of a real run, damaged in its bytes or its values; checksums are made right again where a door has
them, so that damage gets past them. Meanwhile an audit hook watches the interpreter: running code, starting processes,
unpickling, connecting, or writing outside the case's own folder is a failure too. Ends with 1 where there was one.
"""

import argparse
import gzip
import hashlib
import io
import json
import os
import random
import shutil
import sys
import tempfile
import time
import traceback
import warnings
import zipfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parent))

import children
import mutations
from rich.progress import Progress

INSTALLED = (sys.prefix, sys.base_prefix, str(Path(__file__).resolve().parents[1] / "src"))
SLOWEST = 20.0  # seconds of one case, on a busy machine
FORBIDDEN = (
    "exec", "os.system", "os.exec", "os.fork", "os.posix_spawn", "os.spawn", "subprocess.Popen", "pickle.find_class",
    "ctypes.dlopen", "socket.connect", "socket.bind", "code.__new__", "os.remove", "os.rmdir", "os.rename", "os.mkdir",
    "shutil.rmtree", "shutil.move",
)  # fmt: skip


class Door(NamedTuple):
    """Something that reads: `damage` writes a damaged case into the folder, `read` reads it."""

    share: float  # of all cases
    damage: Callable[[Path, random.Random], None]
    read: Callable[[Path], Any]


class Audit:
    """What the interpreter did during a case that reading a file never needs."""

    def __init__(self, allowed: Path):
        self.allowed, self.active, self.seen = str(allowed), False, []
        sys.addaudithook(self.hook)

    def hook(self, event: str, args: tuple) -> None:
        if not self.active:
            return
        if event == "open" and isinstance(args[0], str) and isinstance(args[2], int):
            writes = args[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND)
            if writes and not args[0].startswith(self.allowed):
                self.seen.append(f"open {args[0]} for writing")
        elif event == "exec" and args[0].co_filename.startswith(INSTALLED):
            return  # a module imported late
        elif event in FORBIDDEN and not any(str(arg).startswith(self.allowed) for arg in args):
            self.seen.append(f"{event} {str(args)[:100]}")


def real_run(folder: Path) -> None:
    """A run of the point, trained in a process of its own."""
    ended = children.Child(*children.train_words(folder, total_steps=32 * 8), log=folder.with_suffix(".log")).wait()
    if ended.code:
        raise SystemExit(ended.said)


def doors(run: Path) -> dict[str, Door]:
    """Every place that reads a file, with the real files to damage."""
    from trpl.integrations import onnx
    from trpl.integrations.export import export, load_npz
    from trpl.methods import names as names_of_methods
    from trpl.policies import load_policy
    from trpl.policies.storage import newest_checkpoint, read_checkpoint
    from trpl.presets import preset
    from trpl.reports.curve import learning_curve
    from trpl.reports.page import write_report
    from trpl.reports.reading import read_run
    from trpl.runs import folder as files
    from trpl.runs import records
    from trpl.runs.checkpoints import restore
    from trpl.runs.trainer import Trainer
    from trpl.sweeps.plan import planned_runs, preset_overrides

    config = files.read_config(run).replace(env_timeout=None)
    trainer = Trainer(config, run)
    point, empty = newest_checkpoint(run), trainer.collector.state()
    names = (records.METRICS, records.EVALUATIONS, records.TIMINGS)
    plan = (children.STRESS / "plan.toml").read_bytes()
    learning_curve(run)  # what is imported or evaluated late, before the interpreter is watched
    for method in names_of_methods():
        preset(method, "Hopper-v4")
    for ending in ("onnx", "npz"):
        export(run, run / f"policy.{ending}")

    def one_of_the_records(case: Path, rng: random.Random) -> None:
        _copy(run, case, files.CONFIG, *names)
        damaged = rng.choice(names)
        (case / damaged).write_bytes(mutations.of_lines((run / damaged).read_bytes(), rng))

    def packed(case: Path, rng: random.Random) -> None:
        _copy(run, case, files.CONFIG)
        damaged = rng.choice(names)
        for name in names:
            data = (run / name).read_bytes()
            inner = mutations.of_lines(data, rng) if name == damaged and rng.random() < 0.5 else data
            data = gzip.compress(inner, 1)
            (case / f"{name}.gz").write_bytes(mutations.of_bytes(data, rng) if inner is data else data)

    def report_case(case: Path, rng: random.Random) -> None:
        changed, strange = rng.randrange(3), str(rng.choice(mutations.VALUES))
        for seed in range(2):
            folder = case / f"seed-{seed}"
            folder.mkdir()
            _copy(run, folder, *names)
            about = json.loads((run / files.CONFIG).read_bytes())
            about["config"]["seed"] = seed
            if changed == 0 and seed == 0:
                one_of_the_records(folder, rng)
            for _ in range(4 if changed == 1 and seed == 0 else 0):
                about = mutations.of_value(about, rng)
            if changed == 2:
                about["config"][rng.choice(("method", "env_id"))] = strange
            (folder / files.CONFIG).write_text(json.dumps(about))

    def checkpoint(part: str) -> Callable[[Path, random.Random], None]:
        def damage(case: Path, rng: random.Random) -> None:
            for file in point.iterdir():
                shutil.copyfile(file, case / file.name)
            file, manifest = case / f"{part}.safetensors", case / "manifest.json"
            if rng.random() < 0.7:
                file.write_bytes(_damaged_tensors(file.read_bytes(), rng))
            else:
                manifest.write_bytes(mutations.of_json(manifest.read_bytes(), rng))
            if rng.random() < 0.9:
                _sign(manifest, {file.name: file})

        return damage

    def damaged_state(case: Path) -> None:
        folder = case / "checkpoints" / "00000008"
        folder.mkdir(parents=True)
        for file in [file for file in case.iterdir() if file.is_file()]:
            file.rename(folder / file.name)
        try:
            restore(case, like=trainer.state, collector=trainer.collector, evaluator=trainer.evaluator)
        finally:
            trainer.collector.restore(*empty)

    def read_records(case: Path) -> None:
        for name in names:
            records.read(case, name)
        for name in names:
            records.cut_back(case / name, epochs=range(1, 4))

    def read_policy(case: Path) -> None:
        import numpy as np

        load_policy(case)(np.zeros(2))
        read_checkpoint(case, part="state")

    def read_plan(case: Path) -> None:
        for planned in planned_runs(str(case / "plan.toml")):
            if not (Path("runs") / planned.folder).resolve().is_relative_to(Path("runs").resolve()):
                raise AssertionError(f"{planned.folder} leaves its folder")

    def read_preset(case: Path) -> None:
        preset("kl", "Hopper-v4", **preset_overrides(case / "plan.toml", "kl", "Hopper-v4"))

    def acts(load: Callable[[Path], Any], name: str) -> Callable[[Path], None]:
        def read(case: Path) -> None:
            import numpy as np

            with np.errstate(all="ignore"):
                load(case / name)(np.zeros((1, 2), np.float32))

        return read

    def written(name: str, change: Callable[[bytes, random.Random], bytes], source: bytes) -> Callable:
        return lambda case, rng: (case / name).write_bytes(change(source, rng))

    about = (run / files.CONFIG).read_bytes()
    model, arrays = (run / "policy.onnx").read_bytes(), (run / "policy.npz").read_bytes()
    return {
        "config.json": Door(0.2087, written(files.CONFIG, mutations.of_json, about), files.read_config),
        "records": Door(0.15, one_of_the_records, read_records),
        "records in reports": Door(0.15, one_of_the_records, read_run),
        "packed records": Door(0.10, packed, read_run),
        "learning curve": Door(0.0002, one_of_the_records, learning_curve),
        "report": Door(0.002, report_case, lambda case: write_report([case], case / "out", figures=False)),
        "report figures": Door(0.0001, report_case, lambda case: write_report([case], case / "out")),
        "policy weights": Door(0.12, checkpoint("policy"), read_policy),
        "state": Door(0.06, checkpoint("state"), damaged_state),
        "sweep TOML": Door(0.08, written("plan.toml", mutations.of_toml, plan), read_plan),
        "preset TOML": Door(0.04, written("plan.toml", mutations.of_toml, plan.partition(b"[variant")[0]), read_preset),
        "npz": Door(0.06, written("p.npz", _damaged_npz, arrays), acts(load_npz, "p.npz")),
        "ONNX": Door(0.0295, written("p.onnx", mutations.of_bytes, model), acts(onnx.load, "p.onnx")),
    }


def _copy(run: Path, case: Path, *names: str) -> None:
    for name in names:
        shutil.copyfile(run / name, case / name)


def _damaged_tensors(data: bytes, rng: random.Random) -> bytes:
    """A safetensors file with a damaged header, its length made right, or with damaged bytes."""
    if rng.random() < 0.4:
        return mutations.of_bytes(data, rng)
    size = int.from_bytes(data[:8], "little")
    header = mutations.of_json(data[8 : 8 + size], rng)
    return len(header).to_bytes(8, "little") + header + data[8 + size :]


def _damaged_npz(data: bytes, rng: random.Random) -> bytes:
    """An npz file with a damaged member, its checksum made right, or with damaged bytes."""
    if rng.random() < 0.3:
        return mutations.of_bytes(data, rng)
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as source, zipfile.ZipFile(out, "w") as target:
        names = source.namelist()
        damaged = rng.choice(names)
        for name in names:
            content = source.read(name)
            if name == damaged and rng.random() < 0.2:
                continue
            target.writestr(name, mutations.of_bytes(content, rng) if name == damaged else content)
    return out.getvalue()


def _sign(manifest: Path, files: dict[str, Path]) -> None:
    """Make the checksums right, where there is still a manifest to write them into."""
    try:
        content = json.loads(manifest.read_bytes())["content"]
        content["files"] |= {name: hashlib.sha256(file.read_bytes()).hexdigest() for name, file in files.items()}
        digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
        manifest.write_text(json.dumps({"content": content, "sha256": digest}))
    except (ValueError, LookupError, TypeError, RecursionError):
        return


def try_door(name: str, door: Door, *, count: int, seed: int, place: Path, audit: Audit, advance: Callable) -> dict:
    """`count` cases at one door."""
    outcomes: Counter[str] = Counter()
    failures: list[str] = []
    for number in range(count):
        rng = random.Random(f"{seed} {name} {number}")
        case = place / "case"
        shutil.rmtree(case, ignore_errors=True)
        case.mkdir()
        door.damage(case, rng)
        started, found = time.monotonic(), "read"
        audit.seen.clear()
        try:
            audit.active = number > 0  # the first one imports what is imported late
            door.read(case)
        except Exception as error:
            found = type(error).__name__
            if not type(error).__module__.startswith("trpl") or not str(error):
                found = "failure"
                failures.append(f"case {number}: {''.join(traceback.format_exception(error)[-3:])[-800:]}")
        finally:
            audit.active = False
        if audit.seen or time.monotonic() - started > SLOWEST:
            found = "failure"
            failures.append(f"case {number}: {audit.seen[:3] or 'took too long'}")
        outcomes[found] += 1
        advance()
    return {"cases": count, **outcomes, **({"failures": failures[:5]} if failures else {})}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cases", type=int, default=100_000, help="over all doors")
    parser.add_argument("--only", help="doors, by commas")
    parser.add_argument("--out", type=Path, help="JSON file for the figures")
    args = parser.parse_args(argv)
    shared = Path("/dev/shm")
    started, results = time.monotonic(), {}
    with tempfile.TemporaryDirectory(dir=shared if shared.is_dir() else None) as temporary:
        place = Path(temporary)
        children.prepare(place / "compiled")
        real_run(place / "run")
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", UserWarning)  # passing over a broken checkpoint
        every = doors(place / "run")
        audit = Audit(place)
        with Progress(transient=True) as progress:
            for name in args.only.split(",") if args.only else every:
                count = max(1, round(args.cases * (1.0 if args.only else every[name].share)))
                task = progress.add_task(name, total=count)
                results[name] = try_door(
                    name, every[name], count=count, seed=args.seed, place=place, audit=audit,
                    advance=lambda task=task: progress.advance(task),
                )  # fmt: skip
                progress.remove_task(task)
                progress.print(f"{name}: {json.dumps(results[name])}", markup=False, highlight=False, soft_wrap=True)
    total, failed = (sum(found.get(key, 0) for found in results.values()) for key in ("cases", "failure"))
    seconds = round(time.monotonic() - started)
    print(f"{total} cases in {seconds} s: {failed} failures")
    if args.out:
        args.out.write_text(json.dumps({"seed": args.seed, "seconds": seconds, "doors": results}, indent=1) + "\n")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
