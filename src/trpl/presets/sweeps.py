"""Named sweeps: lists of configurations for `trpl sweep NAME`, each a table or figure of the paper."""

from collections.abc import Iterable, Mapping
from functools import cache
from typing import NamedTuple

from trpl.methods import Method, methods
from trpl.methods.trust_region import FULL_REGRESSION
from trpl.presets.lookup import preset
from trpl.presets.tables import HUMANOID, MUJOCO_TASKS, REACHER
from trpl.settings import Config

# The ablation's figure does not list its values of α; these span two orders of magnitude around the tables' 8.
ABLATION_TASK, ABLATION_WEIGHTS = "Ant-v4", (0.5, 2.0, 8.0, 32.0, 128.0)
ABLATION_SOURCE = "paper, Figure 2 (center) and table of MuJoCo hyperparameters; values of α are this project's"


class NamedSweep(NamedTuple):
    """A description, and the configurations of one seed."""

    description: str
    configs: tuple[Config, ...]


@cache
def named_sweeps() -> Mapping[str, NamedSweep]:
    """List the sweeps of the paper.

    Returns:
        The sweeps by name.
    """
    paper = [method for method in methods() if method.row is not None]
    plain = [method for method in paper if not method.controls_entropy]
    return {
        "mujoco": NamedSweep("Table 1 on Hopper, Walker2d, HalfCheetah and Ant", _table(paper, MUJOCO_TASKS)),
        "humanoid": NamedSweep("Table 1 on Humanoid", _table(paper, (HUMANOID,))),
        "reacher": NamedSweep(
            "Figure 2 (right): the sparse reacher, with and without a covariance per state",
            tuple(
                preset(method.name, REACHER, contextual=contextual)
                for contextual in (False, True)
                for method in plain
                if not contextual or method.contextual
            ),
        ),
        "alpha": NamedSweep(
            "Figure 2 (center): the weight α of the regression penalty, and full regression, W2 on Ant",
            tuple(
                preset("w2", ABLATION_TASK, source=ABLATION_SOURCE, **values)
                for values in (*({"regression_weight": weight} for weight in ABLATION_WEIGHTS), FULL_REGRESSION)
            ),
        ),
    }


def _table(chosen: Iterable[Method], tasks: Iterable[str]) -> tuple[Config, ...]:
    return tuple(preset(method.name, env_id) for env_id in tasks for method in chosen)
