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
from torch import Tensor

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "examples"))
from language_loop import KEPT_TOKENS, Loss, improve, pretrained, success  # noqa: E402

from trpl import SparseCategorical  # noqa: E402
from trpl.torch.tokens import TokenLoss, trust_region_loss  # noqa: E402

RESULTS, TABLE = ROOT / "results" / "language", ROOT / "docs" / "generated" / "language.md"
RATES = (6e-4, 1e-3, 1.5e-3)
SETTINGS: dict[str, list[dict[str, float]]] = {  # of the losses: as many for one as for the other
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
        {"bound": 0.01, "regression_weight": 0.3},
    ],
}
WORDS = {"clip": "clip {:g}", "clip_high": "{:g} above", "bound": "ε = {:g}", "regression_weight": "α = {:g}"}
NUM_BATCHES, SEARCH_SEEDS, FIRST_SEED = 50, (100, 101), 10


def clipped(
    predicted: SparseCategorical,
    old: SparseCategorical,
    advantages: Tensor,
    *,
    clip: float,
    clip_high: float | None = None,
) -> TokenLoss:
    """PPO's loss per token, with the diagnostics of a trust region that is nowhere in force."""
    found = trust_region_loss(predicted, old, advantages, bound=float("inf"), regression_weight=0.0)
    ratio = (predicted.log_probs[..., 0] - old.log_probs[..., 0]).exp()
    held = ratio.clamp(1.0 - clip, 1.0 + (clip if clip_high is None else clip_high))
    return found._replace(loss=-torch.min(ratio * advantages, held * advantages))


def loss_of(method: str, settings: dict[str, float]) -> Loss:
    return partial(clipped if method == "clipping" else trust_region_loss, **settings)


def learn(method: str, settings: dict[str, float], rate: float, seed: int, model: torch.nn.Module) -> dict[str, Any]:
    """One run from a copy of the model: mean reward on the way, success at the end, KL of tokens."""
    model = copy.deepcopy(model)
    before = success(model)
    torch.manual_seed(1000 + seed)
    found = improve(model, NUM_BATCHES, loss_of(method, settings), learning_rate=rate, verbose=False)
    row = {"method": method, "settings": settings, "learning_rate": rate, "seed": seed, "batches": NUM_BATCHES}
    row |= {"kept_tokens": KEPT_TOKENS, "reward": float(np.mean(found.rewards)), "success_before": before}
    row |= {name: value for name, value in found._asdict().items() if name != "rewards"}
    print(json.dumps(row), flush=True)
    return row


def learn_all(runs: Iterable[tuple[str, dict[str, float], float, int]], out: Path) -> None:
    """Train what is not yet in the file, and add it there run by run, so that a stopped search goes on."""
    rows = json.loads(out.read_text()) if out.exists() else []
    done = [(row["method"], row["settings"], row["learning_rate"], row["seed"]) for row in rows]
    models = functools.cache(pretrained)
    for run in runs:
        if run not in done:
            rows.append(learn(*run, models(run[-1])))
            out.write_text(json.dumps(rows, indent=1) + "\n")


def settings_of(method: str) -> Iterable[tuple[dict[str, float], float]]:
    return product(SETTINGS[method], RATES)


def search(out: Path) -> None:
    """Every learning rate with every setting of the loss."""
    learn_all(((m, *pair, seed) for seed in SEARCH_SEEDS for m in SETTINGS for pair in settings_of(m)), out)


def reward_of(tried: list[dict[str, Any]], method: str, settings: dict[str, float], rate: float) -> float:
    """The mean reward of the search with these settings."""
    wanted = (method, settings, rate)
    return float(np.mean([r["reward"] for r in tried if (r["method"], r["settings"], r["learning_rate"]) == wanted]))


def compare(out: Path, num_seeds: int) -> None:
    """The best of the search for each method, on seeds of their own."""
    tried = json.loads((RESULTS / "search.json").read_text())
    best = [(m, *max(settings_of(m), key=lambda pair: reward_of(tried, m, *pair))) for m in SETTINGS]
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
    for method in SETTINGS:
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
    for method in SETTINGS:
        for settings in SETTINGS[method]:
            cells = " | ".join(f"{reward_of(tried, method, settings, rate):.3f}" for rate in RATES)
            lines.append(f"| {in_words(method, settings)} | {cells} |")
    TABLE.write_text("\n".join(lines) + "\n", encoding="utf-8")


def in_words(method: str, settings: dict[str, float]) -> str:
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
