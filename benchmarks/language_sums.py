"""Sums learned from rewards, with trust regions and with clipping: same model, same data, same steps, same search.

    python benchmarks/language_sums.py search --out results/language/search.json    learning rate × settings of the loss
    python benchmarks/language_sums.py compare --out results/language/sums.json     the best of each on other seeds
    python benchmarks/language_sums.py table      results/language/*.json → docs/generated/language.md

The loop is that of examples/language_loop.py: 512 answers per batch, four optimiser steps on each, rewards per digit.
The search trains every learning rate with every setting of the loss on two seeds that are not used again; the best mean
reward over a run wins.
"""

import argparse
import copy
import functools
import json
import sys
from collections.abc import Iterable
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "examples"))
from language_loop import KEPT_TOKENS, Loss, improve, pretrained, success  # noqa: E402

from trpl.torch.tokens import trust_region_loss  # noqa: E402

RESULTS, TABLE = ROOT / "results" / "language", ROOT / "docs" / "generated" / "language.md"
RATES, BEST_RATE = (6e-4, 1e-3, 1.5e-3), 1e-3
Settings = dict[str, float]
SEARCHED: dict[str, list[Settings]] = {  # with every learning rate
    "clipping": [
        {"clip": 0.05},
        {"clip": 0.1},
        {"clip": 0.15},
        {"clip": 0.2},
        {"clip": 0.1, "clip_high": 0.2},
        {"clip": 0.15, "clip_high": 0.3},
    ],
    "trust region": [
        {"bound": 0.003, "regression_weight": 0.0, "pessimism": True},
        {"bound": 0.01, "regression_weight": 0.0, "pessimism": True},
        {"bound": 0.02, "regression_weight": 0.0, "pessimism": True},
        {"bound": 0.01, "regression_weight": 0.1, "pessimism": True},
        {"bound": 0.02, "regression_weight": 0.3, "pessimism": True},
    ],
    "the paper's loss": [{"bound": 0.01, "regression_weight": 0.3}],
}
BOTH: Settings = {"regression_weight": 0.0, "pessimism": True, "clip": 0.1, "clip_high": 0.2}
ADDED: dict[str, list[Settings]] = {  # afterwards, with the rate that was the best for all of them
    "clipping": [
        {"clip": 0.08},
        {"clip": 0.12},
        {"clip": 0.05, "clip_high": 0.1},
        {"clip": 0.1, "clip_high": 0.15},
    ],
    "clip and trust region": [
        {"bound": 0.02} | BOTH,
        {"bound": 0.05} | BOTH,
        {"bound": 0.05} | BOTH | {"regression_weight": 0.1},
        {"bound": 0.02} | BOTH | {"clip": 0.15, "clip_high": 0.3},
    ],
}
METHODS = ("clipping", "clip and trust region", "trust region", "the paper's loss")
WORDS = {"clip": "clip {:g}", "clip_high": "{:g} above", "bound": "ε = {:g}", "regression_weight": "α = {:g}"}
NUM_BATCHES, SEARCH_SEEDS, FIRST_SEED = 50, (100, 101), 20


def loss_of(settings: Settings) -> Loss:
    """The loss with these settings; without a bound it is PPO's."""
    return partial(trust_region_loss, **{"bound": float("inf"), "regression_weight": 0.0} | settings)


def learn(method: str, settings: Settings, rate: float, seed: int, model: torch.nn.Module) -> dict[str, Any]:
    """One run from a copy of the model: mean reward on the way, success at the end, KL of tokens."""
    model = copy.deepcopy(model)
    before = success(model)
    torch.manual_seed(1000 + seed)
    found = improve(model, NUM_BATCHES, loss_of(settings), learning_rate=rate, verbose=False)
    row = {"method": method, "settings": settings, "learning_rate": rate, "seed": seed, "batches": NUM_BATCHES}
    row |= {"kept_tokens": KEPT_TOKENS, "reward": float(np.mean(found.rewards)), "success_before": before}
    row |= {name: value for name, value in found._asdict().items() if name != "rewards"}
    print(json.dumps(row), flush=True)
    return row


def learn_all(runs: Iterable[tuple[str, Settings, float, int]], out: Path) -> None:
    """Train what is not yet in the file, and add it there run by run, so that a stopped search goes on."""
    rows = json.loads(out.read_text()) if out.exists() else []
    done = [(row["method"], row["settings"], row["learning_rate"], row["seed"]) for row in rows]
    models = functools.cache(pretrained)
    for run in runs:
        if run not in done:
            rows.append(learn(*run, models(run[-1])))
            out.write_text(json.dumps(rows, indent=1) + "\n")


def settings_of(method: str) -> list[tuple[Settings, float]]:
    return [*product(SEARCHED.get(method, []), RATES), *product(ADDED.get(method, []), [BEST_RATE])]


def search(out: Path) -> None:
    """Every learning rate with every setting of the loss."""
    learn_all(((m, *pair, seed) for seed in SEARCH_SEEDS for m in METHODS for pair in settings_of(m)), out)


def reward_of(tried: list[dict[str, Any]], method: str, settings: Settings, rate: float) -> float:
    """The mean reward of the search with these settings."""
    wanted = (method, settings, rate)
    return float(np.mean([r["reward"] for r in tried if (r["method"], r["settings"], r["learning_rate"]) == wanted]))


def compare(out: Path, num_seeds: int) -> None:
    """The best of the search for each method, on seeds of their own."""
    tried = json.loads((RESULTS / "search.json").read_text())
    best = [(m, *max(settings_of(m), key=lambda pair: reward_of(tried, m, *pair))) for m in METHODS]
    learn_all(((*settings, seed) for seed in range(FIRST_SEED, FIRST_SEED + num_seeds) for settings in best), out)


def write_table() -> None:
    """The comparison with the search below it, and the cost with its bars."""
    lines = []
    cost = RESULTS / "cost.json"
    if cost.exists():
        lines += ["| cost | ratio | bar |", "| --- | ---: | ---: |"]
        lines += [f"| {row['what']} | {row['value']:.2f} | {row['bar']:.2f} |" for row in json.loads(cost.read_text())]
        lines.append("")
    rows = json.loads((RESULTS / "sums.json").read_text())
    lines += [
        "| sums | seeds | success before | mean reward | success after | largest KL of a token | of its projection |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for method in METHODS:
        runs = [row for row in rows if row["method"] == method]
        name = f"{in_words(method, runs[0]['settings'])}, learning rate {runs[0]['learning_rate']:g}"
        before, reward, after = (spread([run[x] for run in runs]) for x in ("success_before", "reward", "success"))
        kl, held = (max(run[x] for run in runs) for x in ("kl_max", "projected_kl_max"))
        lines.append(f"| {name} | {len(runs)} | {before} | {reward} | {after} | {kl:.3f} | {held:.6f} |")
    lines += [
        "",
        "| search, mean reward | " + " | ".join(f"{rate:g}" for rate in RATES) + " |",
        "| --- |" + " ---: |" * len(RATES),
    ]
    tried = json.loads((RESULTS / "search.json").read_text())
    for method in METHODS:
        for settings in SEARCHED.get(method, []) + ADDED.get(method, []):
            rates = [rate if (settings, rate) in settings_of(method) else None for rate in RATES]
            cells = " | ".join("" if r is None else f"{reward_of(tried, method, settings, r):.3f}" for r in rates)
            lines.append(f"| {in_words(method, settings)} | {cells} |")
    TABLE.write_text("\n".join(lines) + "\n", encoding="utf-8")


def in_words(method: str, settings: Settings) -> str:
    values = [WORDS[name].format(value) for name, value in settings.items() if name in WORDS]
    return ", ".join([method, *values, *(["pessimistic"] if settings.get("pessimism") else [])])


def spread(values: list[float]) -> str:
    """Mean and standard error."""
    return f"{np.mean(values):.3f} ± {np.std(values, ddof=1) / len(values) ** 0.5:.3f}"


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("search", "compare", "table"))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path, help="JSON of runs; those in it are not repeated")
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    if args.what == "table":
        write_table()
    elif args.what == "search":
        search(args.out or RESULTS / "search.json")
    else:
        compare(args.out or RESULTS / "sums.json", args.seeds)


if __name__ == "__main__":
    main(sys.argv[1:])
