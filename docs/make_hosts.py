"""Tables of what the adapters learn, from results/hosts/*.json, for the hosts' pages.

    python docs/make_hosts.py

Writes docs/generated/HOST.md for each file. A file of `benchmarks/hosts.py` has returns by agent and seed, and the
settings that were compared before; one of `benchmarks/brax_learning.py` has tasks.
"""

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS, OUT = ROOT / "results" / "hosts", ROOT / "docs" / "generated"


def number(value: float) -> str:
    """A return without decimals, with a minus sign."""
    return f"{value:.0f}".replace("-", "−")


def row(name: str, returns: dict[str, float], seeds: int | None = None) -> str:
    """An agent's returns by seed, and their mean; where seeds are missing, which there are, and no mean."""
    mean = number(sum(returns.values()) / len(returns))
    each = ", ".join(map(number, returns.values()))
    if seeds is not None and len(returns) < seeds:
        each, mean = f"{each} (seed {', '.join(returns)} alone)", "–"
    return f"| {name} | {each} | {mean} |"


def words(settings: dict[str, Any]) -> str:
    """Settings as a configuration has them."""
    flat = {name: value for name, value in settings.items() if not isinstance(value, dict)}
    flat |= {name: value for inner in settings.values() if isinstance(inner, dict) for name, value in inner.items()}
    shown = {name: f"{value:g}" if isinstance(value, int | float) else value for name, value in flat.items()}
    return ", ".join(f"`{name}` {value}" for name, value in shown.items()) or "as the example has them"


def table(found: dict[str, Any]) -> str:
    """The table of one file, and the command that made it."""
    if "returns" not in found:
        return brax_table(found)
    seeds = sorted({int(seed) for returns in found["returns"].values() for seed in returns})
    lines = [f"| {found['task']}, {found['steps']:,} steps | seeds {', '.join(map(str, seeds))} | mean |"]
    lines += ["| --- | --- | --- |", *(row(name, x, len(seeds)) for name, x in found["returns"].items())]
    text = "\n".join(lines) + f"\n\n*`{found['command']}`*\n"
    if "tuning" in found:
        tuning = found["tuning"]
        text += f"\nTuned before, on seeds {', '.join(map(str, tuning['seeds']))}:\n\n| settings | returns | mean |\n"
        text += "| --- | --- | --- |\n"
        for method, rows in tuning["tried"].items():
            for one in rows:
                returns = {str(k): value for k, value in enumerate(one["returns"])}
                text += row(f"{method}: {words(one['settings'])}", returns) + "\n"
        command = found["command"].replace(" learning ", " tuning ")
        text += f"\n*`{command}`*\n"
    return text


def brax_table(found: dict[str, Any]) -> str:
    """Brax's tasks, each with the bounds that were taken."""
    lines = ["| | each seed | mean |", "| --- | --- | --- |"]
    for task, part in found.items():
        name = f"`{task}`, {part['settings']['num_timesteps']:,} steps"
        lines += [row(f"{name}: PPO", part["PPO"]), row(f"{name}: TRPL, {words(part['trust_region'])}", part["TRPL"])]
    return "\n".join(lines) + "\n\n*`python benchmarks/brax_learning.py --out results/hosts/brax.json`*\n"


def main() -> None:
    for file in sorted(RESULTS.glob("*.json")):
        made = table(json.loads(file.read_text(encoding="utf-8")))
        (OUT / f"{file.stem}.md").write_text(made, encoding="utf-8")


if __name__ == "__main__":
    main()
