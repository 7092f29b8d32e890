"""Time and memory of `trpl report` on many runs.

    python benchmarks/report_speed.py [--runs 500] [--epochs 1465] [--out bench/report_speed.json]

The run folders are synthetic and temporary. The bar: 500 runs of 1465 epochs in at most 30 s and 1.5 GB.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "reports"))

METHODS = ("frobenius", "w2", "kl", "papi", "ppo-m", "ppo", "frobenius-e", "w2-e", "kl-e", "trpo")
TASKS = ("Hopper-v4", "Walker2d-v4", "HalfCheetah-v4", "Ant-v4", "trpl/HumanoidPaper-v4")


def generate(folder: Path, num_runs: int, num_epochs: int) -> None:
    from synthetic_runs import run_config, write_run

    for number in range(num_runs):
        seed, place = divmod(number, len(METHODS) * len(TASKS))
        method, env_id = METHODS[place % len(METHODS)], TASKS[place // len(METHODS)]
        write_run(folder / env_id / method / f"seed-{seed}", run_config(method, env_id, seed, num_epochs))


def report(folder: str, out: str, figures: Path | None) -> None:
    from trpl.reports.page import write_report

    start = time.perf_counter(), time.process_time()
    write_report([Path(folder)], Path(out))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024**2
    wall, cpu = time.perf_counter() - start[0], time.process_time() - start[1]
    size = (Path(out) / "index.html").stat().st_size / 1e6
    print(f"wall {wall:.1f} s, processor {cpu:.1f} s, peak memory {peak:.2f} GB, page {size:.1f} MB")
    if figures:
        rows = [("time", wall, "s", 30.0), ("peak memory", peak, "GB", 1.5)]
        table = [{"what": w, "value": v, "unit": unit, "bar": bar, "met": v <= bar} for w, v, unit, bar in rows]
        figures.write_text(json.dumps(table, indent=2) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=500)
    parser.add_argument("--epochs", type=int, default=1465)
    parser.add_argument("--folder", type=Path, help="keep the synthetic runs here, and use them again")
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    parser.add_argument("--report", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.report:
        report(*options.report, options.out)
        sys.exit()
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.folder or Path(scratch) / "runs"
        if not folder.exists():
            print(f"writing {options.runs} synthetic runs of {options.epochs} epochs ...", flush=True)
            generate(folder, options.runs, options.epochs)
        out = Path(scratch) / "report"
        words = ["--report", str(folder), str(out), *(["--out", str(options.out)] if options.out else [])]
        subprocess.run([sys.executable, __file__, *words], check=True)
