"""What the switches of the authors' release do to returns, from the records in results/."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from measures import difference
from table1 import by_cell, caption, runs_of

from trpl.reports.reading import Run
from trpl.runs.folder import EVALUATIONS
from trpl.runs.records import find, read_rows
from trpl.settings.config import WINDOW

COMMAND, TIME_LIMIT = "python docs/make_claims.py", 1000
SWITCHES = {  # variant of a plan: the option
    "released": "--as-released",
    "time-limits": "--released-time-limits",
    "penalty": "--released-penalty",
}


def switch_text() -> str:
    """Returns at 20 % with a switch, beside the same method computed exactly: of episodes, and per 1000 steps."""
    whole, stopped, single = (runs_of(folder) for folder in ("table1", "early", "switches"))
    without = by_cell(run for run in [*stopped, *whole] if not run.config["released_variance"])
    lines = ["| task | method | switch | seeds | return with, without | difference, 95 % "]
    lines[0] += "| per 1000 steps with, without | difference, 95 % |"
    lines.append("| --- | --- | --- | ---: | ---: | ---: | ---: | ---: |")
    shown: list[Run] = []
    for variant, option in SWITCHES.items():
        switched = by_cell(run for run in [*stopped, *single] if run.path.parent.name == variant)
        for (method, task), runs in sorted(switched.items(), key=lambda found: found[0][::-1]):
            others = without.get((method, task), [])
            measured = [[episodes(run).early() for run in found] for found in (runs, others)]
            first, second = ([found for found in group if found is not None] for group in measured)
            if first and second:
                cells = [compared([per(x) for x in first], [per(x) for x in second]) for per in (mean_return, speed)]
                counts = f"{len(first)}, {len(second)}"
                lines.append(f"| {task} | {method} | `{option}` | {counts} | {' | '.join(cells)} |")
                shown += [*runs, *others]
    return "\n".join([*lines, "", caption(COMMAND, shown), ""])


def compared(first: Sequence[float], second: Sequence[float]) -> str:
    a, b = np.array(first), np.array(second)
    apart = f"{a.mean() - b.mean():.0f}"
    if min(len(a), len(b)) > 1:
        _, low, high = difference(a, b)
        apart += f" ({low:.0f} … {high:.0f})"
    return f"{a.mean():.0f}, {b.mean():.0f} | {apart}"


class Episodes(NamedTuple):
    """Test episodes of a run: returns and lengths by evaluation, the epochs, and where the two windows begin."""

    returns: np.ndarray
    lengths: np.ndarray
    epoch: np.ndarray
    starts: tuple[int, int]

    def window(self, start: int) -> "Episodes | None":
        inside = (self.epoch > start) & (self.epoch <= start + WINDOW)
        return self._replace(returns=self.returns[inside], lengths=self.lengths[inside]) if inside.any() else None

    def early(self) -> "Episodes | None":
        return self.window(self.starts[0])


def episodes(run: Run) -> Episodes:
    file = find(run.path, EVALUATIONS)
    assert file is not None
    rows = read_rows(file)
    returns, lengths, epoch = (np.array([row[name] for row in rows]) for name in ("returns", "lengths", "epoch"))
    return Episodes(returns, lengths, epoch, (run.num_epochs // 5, run.num_epochs - WINDOW))


def mean_return(found: Episodes) -> float:
    return float(found.returns.mean())


def speed(found: Episodes) -> float:
    """Return per 1000 steps, which hardly changes where episodes are cut."""
    return float(1000 * found.returns.sum() / found.lengths.sum())


def evaluation_text() -> str:
    """What an evaluation as released would have reported of the exact runs of Table 1, relative to what it did."""
    lines = ["| task | seeds | after 20 % | final |", "| --- | ---: | ---: | ---: |"]
    shown: list[Run] = []
    by_task: dict[str, list[list[Run]]] = {}
    for (_, task), runs in by_cell(runs_of("table1")).items():
        by_task.setdefault(task, []).append(runs)
    for task, methods in by_task.items():
        changes = np.array([np.mean([change(run) for run in runs], axis=0) for runs in methods])
        ends = np.round(np.stack([changes.min(0), changes.max(0)])).astype(int).T.tolist()
        cells = [" … ".join(dict.fromkeys(map(str, pair))) + " %" for pair in ends]
        lines.append(f"| {task} | {sum(map(len, methods))} | {' | '.join(cells)} |")
        shown += [run for runs in methods for run in runs]
    return "\n".join([*lines, "", caption(COMMAND, shown), ""])


def change(run: Run) -> list[float]:
    """By how many per cent the numbers of Table 1, at 20 % and at the end, would differ."""
    found = episodes(run)
    cut = found._replace(returns=found.returns * cut_lengths(found.lengths, TIME_LIMIT) / found.lengths)
    windows = [(cut.window(start), found.window(start)) for start in found.starts]
    return [100 * (mean_return(a) / mean_return(b) - 1) for a, b in windows if a and b]


def cut_lengths(lengths: np.ndarray, time_limit: int) -> np.ndarray:
    """Lengths of test episodes [evaluation, environment] if the count of steps is not reset between evaluations.

    Environments are stepped until each has ended once. One that ends early starts again; how long these episodes would
    last is not recorded: their lengths are drawn from the recorded ones of the same evaluation and the one before.
    """
    rng, result, counted = np.random.default_rng(0), np.empty_like(lengths), np.zeros(lengths.shape[1], np.int64)
    for number, whole in enumerate(lengths):
        result[number] = np.minimum(whole, time_limit - counted)
        counted = result[number].max() - result[number]  # steps left to fill
        around = lengths[max(number - 1, 0) : number + 1].ravel()
        for env in range(len(whole)):
            while (following := rng.choice(around)) <= counted[env]:
                counted[env] -= following
    return result
