"""Sums learned from rewards, with trust regions and with clipping: same model, same data, same steps, same search.

    python benchmarks/language_sums.py search --out results/language/search.json    learning rate × settings of the loss
    python benchmarks/language_sums.py compare --out results/language/sums.json     the best of each on other seeds
    python benchmarks/language_sums.py table      results/language/*.json → docs/generated/language.md

The loop is that of examples/language_loop.py: 128 answers per batch, four optimiser steps on each. The search trains
every learning rate with every setting of the loss on two seeds that are not used again; the best mean reward wins.
"""

import argparse
import copy
import json
import sys
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
RATES = (3e-4, 6e-4, 1e-3)
SETTINGS: dict[str, list[dict[str, float]]] = {  # of the losses: as many for one as for the other
    "clipping": [{"clip": clip} for clip in (0.02, 0.05, 0.1, 0.2, 0.4)],
    "trust region": [
        {"bound": bound, "regression_weight": weight}
        for bound, weight in (
            (0.003, 1.0),
            (0.01, 1.0),
            (0.01, 4.0),
            (0.05, 1.0),
            (0.05, 4.0),
        )
    ],
}
WORDS = {"clip": "clip", "bound": "ε", "regression_weight": "α"}
NUM_BATCHES, SEARCH_SEEDS = 50, (100, 101)


def clipped(predicted: SparseCategorical, old: SparseCategorical, advantages: Tensor, *, clip: float) -> TokenLoss:
    """PPO's loss per token, with the diagnostics of a trust region that is nowhere in force."""
    found = trust_region_loss(predicted, old, advantages, bound=float("inf"), regression_weight=0.0)
    ratio = (predicted.log_probs[..., 0] - old.log_probs[..., 0]).exp()
    return found._replace(loss=-torch.min(ratio * advantages, ratio.clamp(1.0 - clip, 1.0 + clip) * advantages))


def loss_of(method: str, settings: dict[str, float]) -> Loss:
    return partial(clipped if method == "clipping" else trust_region_loss, **settings)


def learn(method: str, settings: dict[str, float], rate: float, seed: int, model: torch.nn.Module) -> dict[str, Any]:
    """One run from a copy of the model: mean reward on the way, success at the end, the largest KL of any token."""
    model = copy.deepcopy(model)
    before = success(model)
    torch.manual_seed(1000 + seed)
    found = improve(model, NUM_BATCHES, loss_of(method, settings), learning_rate=rate, verbose=False)
    row = {"method": method, "settings": settings, "learning_rate": rate, "seed": seed, "batches": NUM_BATCHES}
    row |= {"kept_tokens": KEPT_TOKENS, "reward": float(np.mean(found.shares)), "success_before": before}
    row |= {"success": found.success, "kl_max": found.kl_max, "projected_kl_max": found.projected_kl_max}
    print(json.dumps(row), flush=True)
    return row


def search() -> list[dict[str, Any]]:
    """Every learning rate with every setting of the loss."""
    models = {seed: pretrained(seed) for seed in SEARCH_SEEDS}
    return [
        learn(method, settings, rate, seed, model)
        for method in SETTINGS
        for settings, rate in product(SETTINGS[method], RATES)
        for seed, model in models.items()
    ]


def reward_of(tried: list[dict[str, Any]], method: str, settings: dict[str, float], rate: float) -> float:
    """The mean reward of the search with these settings."""
    wanted = (method, settings, rate)
    return float(np.mean([r["reward"] for r in tried if (r["method"], r["settings"], r["learning_rate"]) == wanted]))


def compare(num_seeds: int) -> list[dict[str, Any]]:
    """The best of the search for each method, on seeds of their own."""
    tried = json.loads((RESULTS / "search.json").read_text())
    best = [
        (method, *max(product(SETTINGS[method], RATES), key=lambda pair: reward_of(tried, method, *pair)))
        for method in SETTINGS
    ]
    models = {seed: pretrained(seed) for seed in range(num_seeds)}
    return [learn(*settings, seed, model) for seed, model in models.items() for settings in best]


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
        "| sums | seeds | success before | mean reward | success after | largest KL of a token | in the loss |",
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
    return ", ".join([method, *(f"{WORDS[name]} = {value:g}" for name, value in settings.items())])


def spread(values: list[float]) -> str:
    """Mean and standard error."""
    return f"{np.mean(values):.3f} ± {np.std(values, ddof=1) / len(values) ** 0.5:.3f}"


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("search", "compare", "table"))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path, help="write rows as JSON")
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    if args.what == "table":
        return write_table()
    found = search() if args.what == "search" else compare(args.seeds)
    if args.out:
        args.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
