"""SYNTHETIC run folders for tests and the speed benchmark: made-up curves, not results of anything."""

import gzip
import json
import zlib
from pathlib import Path

import numpy as np

ROLLOUT_SIZE = 2048
LEVEL = {"kl": 4000.0, "w2": 3600.0, "frobenius": 3500.0, "ppo": 2800.0, "ppo-m": 3200.0, "papi": 2400.0}
PROJECTIONS = ("kl", "w2", "frobenius", "kl-e", "w2-e", "frobenius-e")


def run_config(method, env_id, seed, num_epochs, **changes):
    bounds = (
        {"mean_bound": 0.03, "cov_bound": 1e-3} if method in PROJECTIONS else {"mean_bound": None, "cov_bound": None}
    )
    config = {
        "method": method, "env_id": env_id, "seed": seed, "total_steps": num_epochs * ROLLOUT_SIZE,
        "source": "SYNTHETIC, for tests", "rollout_size": ROLLOUT_SIZE, "discount": 0.99, **bounds,
        "regression": "penalty", "regression_weight": 8.0, "learning_rate": 5e-5, "contextual": False,
        "hidden_sizes": [64, 64], "eval_every": 1, "checkpoint_every": 20,
    }  # fmt: skip
    return config | changes


def write_run(folder: Path, config, *, done=1.0, zipped=False, eval_every=1, timed=True):
    """A synthetic run folder; `done` is the share of the epochs that were trained. Returns the folder."""
    total = config["total_steps"] // ROLLOUT_SIZE
    count = max(1, round(done * total))
    rng = np.random.default_rng([config["seed"], zlib.crc32(f"{config['method']} {config['env_id']}".encode())])
    epoch = np.arange(1, count + 1)
    progress = epoch / total
    level = LEVEL.get(config["method"], 3000.0) * rng.uniform(0.8, 1.2)
    returns = level * (1 - np.exp(-4 * progress))[:, None] + 150 * rng.standard_normal((count, 5))
    projects = config["mean_bound"] is not None
    kl = 0.025 * np.exp((0.1 if projects else 0.8) * rng.standard_normal(count))
    entropy = 8.0 * 0.5 ** (10 * progress) + 0.05 * rng.standard_normal(count)
    before = 0.02 * np.exp(0.2 * rng.standard_normal(count)) * (8.0 / max(config["regression_weight"], 0.5)) ** 0.3
    metrics = {
        "epoch": epoch, "steps": epoch * ROLLOUT_SIZE, "train_return": returns[:, 0],
        "train_length": epoch * 0 + 1000.0,
        "kl": kl, "kl_max": 3 * kl, "entropy": entropy,
        "entropy_target": 8.0 * 0.5 ** (10 * progress) - 0.1 if config["method"].endswith("-e") else None,
        "mean_bound": epoch * 0 + 0.03 if projects else None, "cov_bound": epoch * 0 + 1e-3 if projects else None,
        "before_mean": before, "before_mean_max": 3 * before, "before_cov": before / 20, "before_cov_max": before / 20,
        "after_mean": np.minimum(before, 0.03), "after_mean_max": np.minimum(3 * before, 0.03),
        "after_cov": np.minimum(before / 20, 1e-3), "after_cov_max": np.minimum(before / 20, 1e-3),
        "projected_mean_share": before * 10, "projected_cov_share": before * 10, "policy_loss": kl,
        "value_loss": 100 * kl, "penalty": kl, "learning_rate": epoch * 0 + 5e-5,
        "learning_rate_vf": epoch * 0 + 4.5e-4, "std_mean": entropy / 8,
    }  # fmt: skip
    if not projects:
        metrics |= {key: None for key in metrics if key.startswith(("before", "after", "projected"))}
    folder.mkdir(parents=True)
    about = {
        "config": config, "versions": {"trpl": "0.0", "python": "3.11"}, "commit": "synthetic",
        "command": f"trpl train {config['method']} {config['env_id']} --seed {config['seed']}",
        "created": "2000-01-01T00:00:00",
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(about))
    keys, columns = list(metrics), [[None] * count if c is None else c.tolist() for c in metrics.values()]
    write_lines(
        folder / "metrics.jsonl", (dict(zip(keys, row, strict=True)) for row in zip(*columns, strict=True)), zipped
    )
    evaluated = [
        {"epoch": int(e), "steps": int(e) * ROLLOUT_SIZE, "returns": r, "lengths": [1000] * 5}
        for e, r in zip(epoch, returns.tolist(), strict=True)
        if e % eval_every == 0
    ]
    write_lines(folder / "evaluations.jsonl", evaluated, zipped)
    if timed:
        speed = 2000.0 + 50 * config["seed"]
        steps = (epoch * ROLLOUT_SIZE).tolist()
        rows = [
            {"epoch": e, "steps": s, "seconds": s / speed, "steps_per_second": speed}
            for e, s in zip(epoch.tolist(), steps, strict=True)
        ]
        write_lines(folder / "timings.jsonl", rows, zipped)
    return folder


def write_lines(file: Path, rows, zipped=False):
    text = "".join(json.dumps(row) + "\n" for row in rows)
    if zipped:
        file.with_name(file.name + ".gz").write_bytes(gzip.compress(text.encode(), mtime=0))
    else:
        file.write_text(text)


def write_runs(
    folder: Path, *, methods=("kl", "ppo"), tasks=("HalfCheetah-v4",), seeds=range(3), num_epochs=60, **options
):
    """A tree of synthetic runs: methods × tasks × seeds. Returns its root."""
    for env_id in tasks:
        for method in methods:
            for seed in seeds:
                place = folder / env_id / method / f"seed-{seed}"
                write_run(place, run_config(method, env_id, seed, num_epochs), **options)
    return folder
