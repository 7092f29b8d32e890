"""Faults thrown at training: kills, a full disk, environments that misbehave, signals, a second process, long runs.

    python stress/faults.py [--seed N] [--kills 200] [--only kills,disk,...] [--out FILE.json]
    python stress/faults.py --only methods       every method on every kind of task
    python stress/faults.py --only long          2 M steps; memory and size of the records along the way

Prints what held, and ends with 1 where something did not.
"""

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import children
from children import Child, epochs_done, outcome, train_words
from rich.progress import track

Result = dict[str, Any]
EXPECTED = {  # what the message has to contain, besides where it happened and how to go on
    "raises": "step raised ZeroDivisionError: the motor is off",
    "exits": "step raised SystemExit",
    "nan-observation": "observation is not finite at index [1]",
    "inf-observation": "observation is not finite at index [0]",
    "nan-reward": "reward is nan, not a finite number",
    "inf-reward": "reward is inf, not a finite number",
    "no-reward": "reward is None, not a finite number",
    "wrong-shape": "observation has shape (1,), its space has (2,)",
    "wrong-type": "observation is a dict, not an array of numbers",
    "too-few-values": "step did not return (observation, reward, terminated, truncated, info)",
    "hangs": "has not answered for 2 s, in troubles.py, line",
    "hangs-asleep": "has not answered for 2 s, in troubles.py, line",
    "hangs-in-reset": "has not answered for 2 s, in troubles.py, line",
    "hangs-in-c": "has not answered for 2 s, in code that does not return to Python",
}


def kills(place: Path, rng: random.Random, *, count: int) -> Result:
    """SIGKILL at `count` moments over a run, every third inside a checkpoint write; the end is the same to the bit."""
    settings = {"num_envs": 2, "normalise_rewards": True, "total_steps": 32 * 4 * count, "seed": rng.randrange(1000)}
    words = partial(train_words, **settings)
    whole, folder, log = place / "whole", place / "killed", place / "log.txt"
    ended = Child(*words(whole), log=log).wait(seconds=1200)
    if ended.code:
        return {"held": False, "why": ended.said[-500:]}
    inside = between = refused = 0
    command = words(folder)
    for kill in track(range(count), description="kills", transient=True):
        child = Child(*command, log=log)
        target = 4 * kill + rng.randrange(1, 4)
        if kill % 3 == 0:  # as soon as a checkpoint after the target is being written
            writing = lambda: epochs_done(folder) >= target and _writing(folder)  # noqa: B023, E731
            moment = child.wait_until(writing, between=0.0)
        else:
            moment = child.wait_until(lambda: epochs_done(folder) >= target)  # noqa: B023
            time.sleep(rng.uniform(0.0, 0.02))
        if not child.running():
            return {"held": False, "why": f"ended by itself before kill {kill}: {child.wait().said[-500:]}"}
        child.kill()
        child.wait()
        landed = _writing(folder)
        inside, between = inside + landed, between + (moment and not landed)
        refused += not _last_is_sound(folder)
        command = ["resume", str(folder), "--quiet"] if (folder / "config.json").exists() else words(folder)
    ended = Child(*command, log=log).wait(seconds=1200)
    same = ended.code == 0 and outcome(folder) == outcome(whole)
    return {
        "held": bool(same and not refused and inside),
        "kills": count,
        "inside a checkpoint write": inside,
        "elsewhere": count - inside,
        "without a sound checkpoint afterwards": refused,
        "epochs": epochs_done(folder),
        "same to the bit": same,
    }


def _writing(folder: Path) -> bool:
    return any(folder.glob("checkpoints/tmp-*"))


def _last_is_sound(folder: Path) -> bool:
    """Whether the newest checkpoint that was finished is whole."""
    from trpl.errors import CheckpointError
    from trpl.policies.storage import check, checkpoint_folders

    try:
        return all(check(newest)["epoch"] for newest in checkpoint_folders(folder)[:1])
    except CheckpointError:
        return False


def disk(place: Path, rng: random.Random, *, count: int) -> Result:
    """A disk that fills up after a random number of bytes; then room is made and the run goes on."""
    whole, log = place / "whole", place / "log.txt"
    total = {"total_steps": 32 * 80}
    ended = Child(*train_words(whole, **total), log=log).wait()
    if ended.code:
        return {"held": False, "why": ended.said[-500:]}
    filled = same = said = sound = 0
    unclear = None
    for trial in track(range(count), description="full disks", transient=True):
        size = rng.randrange(16, 190)
        try:
            with children.small_disk(place / f"disk{trial}", size_kb=size) as resize:
                folder = place / f"disk{trial}" / "run"
                ended = Child(*train_words(folder, **total), log=log).wait()
                filled += ended.code == 1
                clear = _clear(ended.said, "disk is full")
                said, unclear = said + clear, unclear if clear else ended.said[-600:]
                sound += _last_is_sound(folder)
                resize(8192)
                begun = (folder / "config.json").exists()
                again = ["resume", str(folder), "--quiet"] if begun else train_words(folder, **total)
                ended = Child(*again, log=log).wait()
                same += ended.code == 0 and outcome(folder) == outcome(whole)
        except OSError as error:
            return {"held": None, "why": str(error)}
    held = filled == said == sound == same == count
    return {
        "held": held,
        "disks": count,
        "ended with code 1": filled,
        "clear message": said,
        "last checkpoint sound": sound,
        "same to the bit after room was made": same,
        **({"unclear": unclear} if unclear else {}),
    }


def _clear(said: str, *words: str) -> bool:
    """Whether a message has `words` and is one line of trpl's own, without a traceback."""
    lines = [line for line in said.splitlines() if line.strip()]
    return bool(lines) and lines[-1].startswith("trpl: ") and "Traceback" not in said and all(w in said for w in words)


def environments(place: Path, rng: random.Random, *, faults: tuple[str, ...]) -> Result:
    """Environments that raise, return nonsense or hang: a message that says where and how to go on; all saved."""
    problems = {}
    for fault in track(faults, description="environments", transient=True):
        folder = place / fault
        words = train_words(folder, env_id=f"troubles:{fault}-v0", total_steps=320, checkpoint_every=1, env_timeout=2.0)
        ended = Child(*words, log=place / "log.txt").wait(seconds=120)
        where = f"troubles:{fault}-v0" if fault == "hangs-in-c" else f"troubles:{fault}-v0 (environment 0), episode"
        clear = _clear(ended.said, EXPECTED[fault], where, f"trpl resume {folder}")
        code = ended.code == (-signal.SIGKILL if fault == "hangs-in-c" else 1)
        if not (clear and code and _last_is_sound(folder) and any(folder.glob("checkpoints/0*"))):
            problems[fault] = f"code {ended.code}: {ended.said[-600:]}"
    folder = place / "one-step"
    ended = Child(*train_words(folder, env_id="troubles:one-step-v0", total_steps=64), log=place / "log.txt").wait()
    if ended.code:
        problems["one-step"] = ended.said[-600:]
    return {"held": not problems, "faults": len(faults) + 1, **problems}


def signals(place: Path, rng: random.Random) -> Result:
    """SIGTERM and Ctrl-C: a checkpoint, how to go on, exit code 143 and 130; going on ends with the same bits."""
    whole, log = place / "whole", place / "log.txt"
    total = {"total_steps": 32 * 400, "checkpoint_every": 1000}
    Child(*train_words(whole, **total), log=log).wait()
    problems = {}
    for number in (signal.SIGTERM, signal.SIGINT):
        folder = place / number.name
        child = Child(*train_words(folder, **total), log=log)
        child.wait_until(lambda: epochs_done(folder) >= 5)  # noqa: B023
        child.kill(number)
        ended = child.wait()
        if (
            ended.code != 128 + number
            or "continue with: trpl resume" not in ended.said
            or not any(folder.glob("checkpoints/0*"))
        ):
            problems[number.name] = f"code {ended.code}: {ended.said[-600:]}"
            continue
        Child("resume", folder, "--quiet", log=log).wait()
        if outcome(folder) != outcome(whole):
            problems[number.name] = "other bits after going on"
    return {"held": not problems, "signals": 2, **problems}


def second_process(place: Path, rng: random.Random) -> Result:
    """A second process on a run folder is refused, and the first does not notice."""
    folder = place / "shared"
    first = Child(*train_words(folder, total_steps=32 * 100_000), log=place / "first.txt")
    first.wait_until(lambda: epochs_done(folder) >= 1)
    resumed = Child("resume", folder, log=place / "second.txt").wait()
    begun = Child(*train_words(folder), log=place / "third.txt").wait()
    alive = first.running()
    first.kill(signal.SIGTERM)
    ended = first.wait()
    held = (
        alive and resumed.code == 1 and _clear(resumed.said, "in use by another process")
        and begun.code == 1 and _clear(begun.said, "already holds a run") and ended.code == 128 + signal.SIGTERM
    )  # fmt: skip
    return {"held": held, "said": resumed.said.strip()[-200:]}


KINDS = {
    "plain": ("",), "one action": ("Pendulum-v1",), "terminating": ("Hopper-v4",), "many inputs": ("Ant-v4",),
    "own task": ("trpl/Reacher5Sparse-v0",), "one-step episodes": ("troubles:one-step-v0",),
    "full covariance": ("", "--covariance", "full"), "covariance per state": ("", "--contextual"),
    "full covariance per state": ("", "--covariance", "full", "--contextual"),
    "several, normalised": ("", "--num-envs", "4", "--normalise-rewards", "--observation-clip", "5"),
}  # fmt: skip


def methods(place: Path, rng: random.Random) -> Result:
    """Every method on every kind of task it supports, for two updates."""
    from trpl.methods import find, names

    pairs = [(m, k) for m in names() for k in KINDS if find(m).contextual or "--contextual" not in KINDS[k]]
    problems = {}
    for method, kind in track(pairs, description="methods", transient=True):
        env_id, *options = KINDS[kind]
        folder, settings = place / f"{method} {kind}", {"policy_epochs": None} if method == "trpo" else {}
        words = train_words(folder, env_id=env_id or "troubles:point-v0", method=method, total_steps=64, **settings)
        ended = Child(*words, *options, log=place / "log.txt").wait()
        if ended.code or epochs_done(folder) != 2:
            problems[f"{method}, {kind}"] = ended.said[-400:]
    return {"held": not problems, "methods": len(names()), "kinds": len(KINDS), "pairs": len(pairs), **problems}


def long_run(place: Path, rng: random.Random, *, steps: int) -> Result:
    """A run of `steps` steps: time, memory along the way, bytes of records per epoch in both halves."""
    folder = place / "long"
    changes = {
        "rollout_size": 2048,
        "minibatch_size": 64,
        "eval_every": 50,
        "checkpoint_every": 20,
        "total_steps": steps,
    }
    started = time.monotonic()
    child = Child(*train_words(folder, **changes), log=place / "log.txt")
    seen: list[tuple[int, float, int]] = []  # epoch, memory in MB, bytes of metrics

    def look() -> bool:
        done = epochs_done(folder)
        if done and (not seen or done > seen[-1][0]):
            pages = int(Path(f"/proc/{child.pid}/statm").read_text().split()[1])
            seen.append((done, pages * os.sysconf("SC_PAGE_SIZE") / 2**20, (folder / "metrics.jsonl").stat().st_size))
        return False

    child.wait_until(look, seconds=3600, between=0.5)
    ended = child.wait()
    epochs, memory, size = zip(*seen, strict=True)
    early, last = next(n for n, e in enumerate(epochs) if e >= epochs[-1] // 10), len(seen) - 1
    half = next(n for n, e in enumerate(epochs) if e >= epochs[-1] // 2)
    per_epoch = [size[half] / epochs[half], (size[last] - size[half]) / max(1, epochs[last] - epochs[half])]
    grown = memory[last] - memory[early]
    linear = abs(per_epoch[1] / per_epoch[0] - 1) < 0.05
    return {
        "held": ended.code == 0 and grown < 8.0 and linear,
        "steps": steps,
        "seconds": round(time.monotonic() - started),
        "memory after a tenth, MB": round(memory[early], 1),
        "memory at the end, MB": round(memory[last], 1),
        "bytes of metrics per epoch, first and second half": [round(found) for found in per_epoch],
        "said": ended.said[-300:] if ended.code else "",
    }


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--disks", type=int, default=20)
    parser.add_argument("--faults", default=",".join(EXPECTED), help="which environments")
    parser.add_argument("--steps", type=int, default=2_000_000, help="of the long run")
    parser.add_argument(
        "--only", default="kills,disk,environments,signals,second-process", help="parts, or methods, or long"
    )
    parser.add_argument("--out", type=Path, help="JSON file for the figures")
    args = parser.parse_args(argv)
    parts: dict[str, Callable[[Path, random.Random], Result]] = {
        "kills": lambda place, rng: kills(place, rng, count=args.kills),
        "disk": lambda place, rng: disk(place, rng, count=args.disks),
        "environments": lambda place, rng: environments(place, rng, faults=tuple(filter(None, args.faults.split(",")))),
        "signals": signals,
        "second-process": second_process,
        "methods": methods,
        "long": lambda place, rng: long_run(place, rng, steps=args.steps),
    }
    results: dict[str, Result] = {}
    with tempfile.TemporaryDirectory() as temporary:
        children.prepare(Path(temporary) / "compiled")
        for name in args.only.split(","):
            place = Path(temporary) / name
            place.mkdir()
            started = time.monotonic()
            results[name] = parts[name](place, random.Random(f"{args.seed} {name}"))
            results[name].setdefault("seconds", round(time.monotonic() - started))
            words = {True: "held", False: "DID NOT HOLD", None: "skipped"}[results[name]["held"]]
            print(f"{name}: {words}", json.dumps({k: v for k, v in results[name].items() if k != "held"}), flush=True)
    if args.out:
        args.out.write_text(json.dumps({"seed": args.seed, **results}, indent=1) + "\n")
    return int(any(found["held"] is False for found in results.values()))


if __name__ == "__main__":
    sys.exit(main())
