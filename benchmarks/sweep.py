"""Speed of a sweep: eight short runs on all workers against the same runs one after another.

    python benchmarks/sweep.py [--workers 2] [--steps 40960] [--out bench/sweep.json]

Three times are taken: `trpl train` eight times in a row, `trpl sweep --workers 1`, and `trpl sweep --workers N`. The
bar is 1.8 times the speed of the first on two idle cores. CPU time is shown beside the wall clock: on a busy machine it
tells more, and what a sweep's is above that of the runs is its overhead.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ONE_THREAD = {"OMP_NUM_THREADS": "1", "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false"}
BAR = 1.8  # on two cores
METHODS, SEEDS = ("kl", "w2", "ppo", "ppo-m"), (0, 1)


def trpl(*words: str, cwd: Path) -> None:
    command = [sys.executable, "-m", "trpl.cli", *words]
    done = subprocess.run(command, cwd=cwd, env={**os.environ, **ONE_THREAD}, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(words)}\n{done.stdout}{done.stderr}")


def measured(work) -> tuple[float, float]:
    """Wall-clock and CPU seconds, those of processes that ended included."""

    def cpu() -> float:
        return sum(
            u.ru_utime + u.ru_stime for u in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
        )

    wall, before = time.perf_counter(), cpu()
    work()
    return time.perf_counter() - wall, cpu() - before


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--steps", type=int, default=20 * 2048)
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        (here / "plan.toml").write_text(
            f"methods = {list(METHODS)}\ntasks = ['HalfCheetah-v4']\nseeds = {list(SEEDS)}\n"
            f"[settings]\ntotal_steps = {args.steps}\neval_every = 1000\neval_episodes = 1\n"
        )
        options = ("--steps", str(args.steps), "--eval-every", "1000", "--eval-episodes", "1", "--quiet")

        def one_by_one() -> None:
            for seed in SEEDS:
                for method in METHODS:
                    trpl("train", method, "HalfCheetah-v4", "--seed", str(seed), *options, cwd=here)

        def sweep(workers: int) -> None:
            trpl("sweep", "plan.toml", "--out", f"swept-{workers}", "--workers", str(workers), cwd=here)

        first = measured(one_by_one)
        alone, together = (measured(lambda n=workers: sweep(n)) for workers in (1, args.workers))
    rows = [
        ("trpl train, one after another", first),
        ("trpl sweep --workers 1", alone),
        (f"trpl sweep --workers {args.workers}", together),
    ]
    for name, (wall, cpu) in rows:
        print(f"{name:<32} {wall:7.1f} s wall  {cpu:7.1f} s CPU  speed × {first[0] / wall:.2f}")
    if args.out:
        figures = [
            {"what": name, "seconds": wall, "CPU seconds": cpu, "speed": first[0] / wall} for name, (wall, cpu) in rows
        ]
        figures[-1] |= {"bar": BAR, "met": figures[-1]["speed"] >= BAR}
        args.out.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
