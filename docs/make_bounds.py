"""The tables of the page on bounds, from the records in results/bounds and results/table1.

    python docs/make_bounds.py

Writes docs/generated/bounds.md, a line per variant, and docs/generated/healthy.md, the records of `kl` at the paper's
settings. All are means over seeds. Shares and distances are those at the end of each update, in the
first table over the epochs after the tenth; the return is that of the last ten epochs of training.
"""

import gzip
import json
from pathlib import Path
from statistics import mean

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "docs" / "generated"
HEAD = (
    *("task", "rollout", "optimiser steps", "mean bound", "means projected", "covariance projected"),
    *("network ÷ bound: mean, worst", "KL per epoch", "entropy lost", "return"),
)


def main() -> None:
    found: dict[tuple, list[dict]] = {}
    for file in sorted((ROOT / "results" / "bounds").glob("*/kl/*/seed-*/metrics.jsonl.gz")):
        config = json.loads((file.parent / "config.json").read_text(encoding="utf-8"))["config"]
        found.setdefault(key(config), []).append(summary(lines(file)))
    rows = [f"| {' | '.join(HEAD)} |", "| --- " + "| ---: " * (len(HEAD) - 1) + "|"]
    rows += [f"| {' | '.join(cells(which, found[which]))} |" for which in sorted(found)]
    (OUT / "bounds.md").write_text("\n".join(rows) + "\n", encoding="utf-8")
    (OUT / "healthy.md").write_text("\n".join(healthy()) + "\n", encoding="utf-8")


def healthy() -> list[str]:
    """What the audit shows in runs that learn, early and late."""
    rows = ["| task | epochs | seeds | means projected | network, mean ÷ bound | network, worst ÷ bound |"]
    rows.append("| --- | ---: | ---: | ---: | ---: | ---: |")
    for task in sorted((ROOT / "results" / "table1").iterdir()):
        runs = [lines(file) for file in sorted(task.glob("kl/seed-*/metrics.jsonl.gz"))]
        if not runs:
            continue
        for words, part in (("11–100", slice(10, 100)), ("last 100", slice(-100, None))):
            found = [summary(metrics, part) for metrics in runs]
            value = {name: mean(row[name] for row in found) for name in ("share", "network", "worst")}
            numbers = f"{value['share']:.0%} | {value['network']:.2f} | {value['worst']:.1f}"
            rows.append(f"| `{task.name}` | {words} | {len(runs)} | {numbers} |")
    return rows


def lines(file: Path) -> list[dict]:
    with gzip.open(file, "rt", encoding="utf-8") as text:
        return [json.loads(line) for line in text]


def key(config: dict) -> tuple:
    updates = config["policy_epochs"] * config["rollout_size"] // config["minibatch_size"]
    return config["env_id"], config["rollout_size"], -updates, config["mean_bound"]


def summary(metrics: list[dict], part: slice = slice(10, None)) -> dict:
    counted, bound = metrics[part], metrics[0]["mean_bound"]
    returns = [line["train_return"] for line in metrics[-10:] if line["train_return"] is not None]
    return {
        "share": mean(line["projected_mean_share"] for line in counted),
        "cov": mean(line["projected_cov_share"] for line in counted),
        "network": mean(line["before_mean"] for line in counted) / bound,
        "worst": mean(line["before_mean_max"] for line in counted) / bound,
        "kl": mean(line["kl"] for line in counted),
        "entropy": metrics[0]["entropy"] - metrics[-1]["entropy"],
        "return": mean(returns),
    }


def cells(which: tuple, seeds: list[dict]) -> list[str]:
    task, rollout, updates, bound = which
    value = {name: mean(row[name] for row in seeds) for name in seeds[0]}
    return [
        *(f"`{task}`", str(rollout), str(-updates), f"{bound:g}", f"{value['share']:.0%}", f"{value['cov']:.0%}"),
        *(f"{value['network']:.2f}, {value['worst']:.1f}", f"{value['kl']:.2g}", f"{value['entropy']:.2f}"),
        f"{value['return']:.0f}",
    ]


if __name__ == "__main__":
    main()
