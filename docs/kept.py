"""How the network, which acts, kept to its bounds: over whole trainings, and late in them by what may hold it."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from measures import FINAL, distance, values_of
from table1 import caption, runs_by_name

from trpl.methods.registry import known
from trpl.reports import statistics
from trpl.reports.reading import Run

TABLE, REACHER, HUMANOID, ALPHA, LATE = "table1", "reacher", "humanoid", "alpha", "late"
COMMAND = "python docs/make_claims.py"


def kept_text() -> str:
    """How the network kept to its bounds, for all records."""
    lines = [
        "| records | task | method | steps | seeds | mean bound | worst state | mean outside | covariance binds |",
        "| --- | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    shown: list[Run] = []
    for folder in (TABLE, LATE, ALPHA, REACHER, HUMANOID):
        for (task, name), runs in sorted(runs_by_name(folder).items()):
            finished = [run for run in runs if run.finished]
            if finished and (cells := bounds(finished)):
                steps = f"{finished[0].total_steps / 1e6:.3g} M"
                lines.append(
                    f"| {folder} | {task.removeprefix('trpl/')} | {name} | {steps} | {len(finished)} | {cells}"
                )
                shown += finished
    return "\n".join([*lines, "", caption(COMMAND, shown), ""])


def bounds(runs: Sequence[Run]) -> str | None:
    """Cells of a table, or None for methods without separate bounds."""
    bound = runs[0].config.get("mean_bound")
    if bound is None or known(runs[0].method) is None:
        return None
    largest = [float(np.max(run.metrics.values["before_mean_max"])) for run in runs]
    outside = [float(np.mean(run.metrics.values["before_mean"] > bound)) for run in runs]
    metrics = [run.metrics.values for run in runs]
    binds = [float(np.mean(values["before_cov"] > values["cov_bound"])) for values in metrics]
    worst = span([f"{value:,.{2 if value < 100 else 0}f}" for value in (min(largest), max(largest))])
    shares = [span([f"{100 * value:.0f}" for value in (min(share), max(share))]) + " %" for share in (outside, binds)]
    return f"{bound:g} | {worst} | {' | '.join(shares)} |"


def span(ends: Sequence[str]) -> str:
    """Write a range, or one number where both ends read the same."""
    return " – ".join(dict.fromkeys(ends))


class Way(NamedTuple):
    """Something that may hold the network near its projection, and its runs."""

    words: str
    folder: str
    name: str


WAYS = {  # what holds it, on which task and method
    ("Ant-v4", "w2"): [
        *(Way(f"α = {weight}", ALPHA, f"w2 alpha={weight}") for weight in ("0.5", "2", "8", "32", "128")),
        Way("full regression", ALPHA, "w2 full"),
        Way("entropy control", TABLE, "w2-e"),
    ],
    ("HalfCheetah-v4", "kl"): [
        Way("α = 8", TABLE, "kl"),
        Way("α = 32", LATE, "kl alpha=32"),
        Way("40 epochs", LATE, "kl epochs=40"),
        Way("full regression", LATE, "kl full"),
        Way("entropy control", TABLE, "kl-e"),
    ],
}
HELD, LEFT, OPEN, SINGLE, MISSING = "within its bound", "outside its bound", "undecided", "one seed", "not run"


def late_text() -> str:
    """The network's mean early and late in training, and a sentence on each task."""
    head = ["| task | method | | seeds | first fifth | last fifth | epochs outside in it | worst state in it "]
    head += ["| final return | the mean late |"]
    lines = ["".join(head), "| --- | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | --- |"]
    sentences, shown = [], []
    for (task, method), ways in WAYS.items():
        verdicts: dict[str, list[str]] = {}
        for way in ways:
            runs = [run for run in runs_by_name(way.folder).get((task, way.name), []) if run.finished]
            verdict = held(runs)
            verdicts.setdefault(verdict, []).append(way.words)
            shown += runs
            if runs:
                lines.append(f"| {task} | {method} | {way.words} | {len(runs)} | {late_cells(runs)} | {verdict} |")
        order = [verdict for verdict in (HELD, LEFT, OPEN, SINGLE, MISSING) if verdict in verdicts]
        found = [f"*{verdict}* with {', '.join(verdicts[verdict])}" for verdict in order]
        sentences.append(f"- `{method}` on {task}, mean in the last fifth: {'; '.join(found)}.")
    return "\n".join([*lines, "", caption(COMMAND, shown), "", *sentences, ""])


def fifth(values: np.ndarray, number: int) -> np.ndarray:
    """The epochs of a fifth of the training: 0 the first, 4 the last."""
    return np.array_split(values, 5)[number]


def over_seeds(values: Iterable[float]) -> statistics.Estimate:
    return statistics.estimate(statistics.mean, [np.array([*values])], generator=np.random.default_rng(0))


def held(runs: Sequence[Run]) -> str:
    """Whether the distance in the last fifth is below its bound, by Student's interval over seeds."""
    if len(runs) < 2:
        return SINGLE if runs else MISSING
    _, low, high = over_seeds(fifth(distance(run), 4).mean() for run in runs)
    return HELD if high < 1 else LEFT if low > 1 else OPEN


def late_cells(runs: Sequence[Run]) -> str:
    early, late = ([float(fifth(distance(run), number).mean()) for run in runs] for number in (0, 4))
    outside = [100 * float((fifth(distance(run), 4) > 1).mean()) for run in runs]
    largest = [fifth(run.metrics.values["before_mean_max"], 4).max() / run.config["mean_bound"] for run in runs]
    cells = [f"{np.mean(early):.2f}", with_interval(late, digits=2)]
    cells += [f"{span([f'{share:.0f}' for share in (min(outside), max(outside))])} %"]
    cells += [span([f"{worst:.1f}" for worst in (min(largest), max(largest))])]
    return " | ".join([*cells, with_interval(values_of(runs, FINAL), digits=0)])


def with_interval(values: Sequence[float] | np.ndarray, *, digits: int) -> str:
    value, _, high = over_seeds(values)
    return f"{value:.{digits}f}" + (f" ± {high - value:.{digits}f}" if len(values) > 1 else "")
