"""Groups of runs to average: one method on one task, with equal settings except for the seed."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import MISSING, dataclass
from itertools import pairwise
from typing import Any

from trpl.errors import RecordError
from trpl.methods.registry import known, names, settings
from trpl.presets.lookup import AS_RELEASED, SWITCH
from trpl.presets.tables import PAPER_TASKS
from trpl.reports.reading import Run
from trpl.settings.config import NOT_COMPARED


@dataclass(frozen=True, eq=False)
class Group:
    """The runs of one method (and variant of it) on one task, by rising seed.

    `variant` holds the settings that distinguish runs of one method: (("regression_weight", 8.0),). Unfinished runs are
    left out if any run is finished.
    """

    method: str
    env_id: str
    variant: tuple[tuple[str, Any], ...]
    runs: tuple[Run, ...]
    unfinished: tuple[Run, ...] = ()

    @property
    def name(self) -> str:
        """The method's label, with its variant; a switch is named where it is on."""
        name = method_label(self.method)
        variant = ", ".join(filter(None, (_words(key, value) for key, value in self.variant)))
        return f"{name} ({variant})" if variant else name

    @property
    def every_run(self) -> tuple[Run, ...]:
        """All runs, those left out included."""
        return (*self.runs, *self.unfinished)

    @property
    def finished(self) -> bool:
        return all(run.finished for run in self.runs)

    @property
    def stopped_as_planned(self) -> bool:
        """Whether its runs stopped where they were asked to, before the end of their schedules."""
        return not self.finished and all(run.stopped_as_planned for run in self.runs)

    @property
    def total_steps(self) -> int:
        return self.runs[0].total_steps

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of its runs, apart from those that name them."""
        own = self.runs[0].config.items()
        return {key: value for key, value in own if key not in ("method", "env_id", "seed")}


def _words(key: str, value: Any) -> str:
    if isinstance(value, bool):
        return key.replace("_", " ") if value else ""
    return f"{key}={'none' if value in ('', None) else value}"


def method_label(method: str) -> str:
    """Return a method's label for tables and figures; an unregistered one keeps its name."""
    found = known(method)
    return method if found is None else found.label


def controls_entropy(method: str) -> bool:
    """Tell whether a method is a variant with entropy control."""
    found = known(method)
    return found is not None and found.controls_entropy


def place(method: str) -> int:
    """Rank methods in the order of the paper's table, then as registered."""
    return names().index(method) if known(method) is not None else len(names())


def group_runs(runs: Iterable[Run], by: Sequence[str] = ()) -> list[Group]:
    """Group `runs` in the order of the paper's table; `by` names settings that distinguish variants.

    `as_released` among them stands for all switches of the authors' release together.

    Raises RecordError, naming the difference, if runs of one group have different settings or the same seed.
    """
    gathered: dict[tuple, list[Run]] = {}
    for run in runs:
        for key in by:
            if key not in run.config and key not in (*settings(), AS_RELEASED):
                raise RecordError(f"{run.path}: there is no setting {key!r} to distinguish runs by")
        variant = tuple((key, _distinguishing_value(run, key)) for key in by)
        gathered.setdefault((run.method, run.env_id, _canonical(variant)), []).append(run)
    groups = []
    for (method, env_id, _), members in gathered.items():
        members.sort(key=lambda run: run.seed)
        _check_alike(members)
        finished = tuple(run for run in members if run.finished)
        unfinished = tuple(run for run in members if not run.finished)
        variant = tuple((key, _distinguishing_value(members[0], key)) for key in by)
        groups.append(Group(method, env_id, variant, finished or unfinished, unfinished if finished else ()))
    return sorted(groups, key=_order)


def _distinguishing_value(run: Run, key: str) -> Any:
    """Look up the value that distinguishes a run; `as_released` stands for all switches of the authors' release."""
    if key != AS_RELEASED:
        return run.config.get(key)
    switches = [value for name, value in run.config.items() if name.startswith(SWITCH) and value is not None]
    return bool(switches) and all(switches)


def _order(group: Group) -> tuple:
    task = PAPER_TASKS.index(group.env_id) if group.env_id in PAPER_TASKS else len(PAPER_TASKS)
    variant = tuple(
        (0, float(v), "") if isinstance(v, (int, float)) else (1, 0.0, _canonical(v)) for _, v in group.variant
    )
    return task, group.env_id, place(group.method), group.method, variant


def _check_alike(runs: Sequence[Run]) -> None:
    """Raise RecordError if two of `runs` differ in a setting, or share a seed."""
    first = runs[0]
    what = f"runs of {first.method} on {first.env_id}"
    differing = [(run, _differing(first, run)) for run in runs[1:]]
    every = sorted({key for _, keys in differing for key in keys})
    for run, keys in differing:
        if keys:
            listed = "; ".join(f"{key} is {_setting(first, key)!r} and {_setting(run, key)!r}" for key in keys)
            raise RecordError(
                f"{what} cannot be averaged, their configurations differ: {listed} (in {first.path} and {run.path}). "
                f"Report them separately, or tell them apart with {' '.join(f'--by {key}' for key in every)}."
            )
    for run, following in pairwise(runs):
        if run.seed == following.seed:
            raise RecordError(f"{what}: seed {run.seed} occurs twice, in {run.path} and {following.path}")


def _differing(run: Run, other: Run) -> list[str]:
    """List the settings in which two runs differ, apart from those without effect on the result."""
    keys = sorted((run.config.keys() | other.config.keys()) - NOT_COMPARED)
    return [key for key in keys if _canonical(_setting(run, key)) != _canonical(_setting(other, key))]


def _setting(run: Run, key: str) -> Any:
    """Look up a run's setting; one that is newer than the run has its default, which computes the same."""
    method = known(run.method)
    if key in run.config or method is None or key not in method.settings.names():
        return run.config.get(key)
    field = method.settings.field(key)
    default = field.default if field.default_factory is MISSING else field.default_factory()
    return list(default) if isinstance(default, tuple) else default


def _canonical(value: Any) -> str:
    """Write a setting so that equal ones, also lists and tables, are equal text."""
    return json.dumps(value, sort_keys=True)
