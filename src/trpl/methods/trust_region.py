"""Policy gradient through a trust-region layer, by region, with and without entropy control.

Defaults are the paper's table of MuJoCo hyperparameters. A new region takes a settings class, if it has settings of its
own, and one call of `register_region` below.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from trpl.entropy_schedule import SCHEDULES
from trpl.errors import ConfigError
from trpl.methods import palette
from trpl.methods.method import LayerSpec, Method, Style
from trpl.methods.registry import register
from trpl.settings import Choice, PolicyEpochs, Real, setting

Values = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class TrustRegion(PolicyEpochs):
    """Settings of all methods that train through a trust-region layer."""

    entropy_schedule: str = setting("none", "schedule of the entropy bound", choices=SCHEDULES)
    target_entropy: float | None = setting(
        None, "κ, final entropy per action dimension", optional=True, search=Real(-1.0, 1.0)
    )
    temperature: float | None = setting(
        None, "τ of the exponential schedule", above=0.0, most=1.0, optional=True, search=Real(0.05, 0.95)
    )
    entropy_equality: bool | None = setting(
        None,
        "hold the entropy at the schedule instead of above it",
        optional=True,
        search=Choice((False, True)),
    )
    regression: str = setting(
        "penalty",
        "how the network is pulled to its projection: a penalty, or supervised epochs afterwards",
        choices=("penalty", "full"),
    )
    regression_weight: float = setting(8.0, "α, weight of the penalty", least=0.0, search=Real(0.5, 128.0, log=True))
    regression_epochs: int | None = setting(None, "supervised epochs of the full regression", least=1, optional=True)
    anchor_decay: float | None = setting(
        None,
        "anchor the trust region to a moving average of past policies: the average's decay per epoch",
        least=0.0,
        below=1.0,
        optional=True,
    )

    @property
    def entropy_controlled(self) -> bool:
        """Tell whether the entropy follows a schedule."""
        return self.entropy_schedule != "none"

    def check_together(self) -> None:
        """Refuse incomplete settings of entropy control and regression.

        Raises:
            ConfigError: A setting is missing, or does not apply.
        """
        super().check_together()
        schedule = f"entropy_schedule {self.entropy_schedule!r}"
        if self.entropy_controlled:
            self.need("target_entropy", "entropy_equality", reason=schedule)
            if self.entropy_schedule == "exponential":
                self.need("temperature", reason=schedule)
            else:
                self.refuse("temperature", without="entropy_schedule 'exponential'")
        else:
            names = ("target_entropy", "temperature", "entropy_equality", "entropy_first")
            self.refuse(*names, without="an entropy_schedule")
        if self.regression != "full":
            self.refuse("regression_epochs", without="regression 'full'")
        else:
            self.need("regression_epochs", reason="regression 'full'")
            if self.regression_weight:
                raise ConfigError("regression 'full' replaces the penalty: regression_weight must be 0")


@dataclass(frozen=True, kw_only=True)
class Ordered(TrustRegion):
    """Settings of regions that set the entropy before or after the projection, not jointly with it."""

    entropy_first: bool | None = setting(None, "set the entropy before the trust region, not after it", optional=True)


@dataclass(frozen=True, kw_only=True)
class Separate(Ordered):
    """Settings of regions with one bound on the mean and another on the covariance."""

    mean_bound: float = setting(0.03, "ε_μ, bound on the mean part", above=0.0, search=Real(3e-3, 0.3, log=True))
    cov_bound: float = setting(1e-3, "ε_Σ, bound on the covariance part", above=0.0, search=Real(1e-5, 1e-2, log=True))


@dataclass(frozen=True, kw_only=True)
class SeparateKL(Ordered):
    """Settings of the KL region: two bounds for a Gaussian policy; otherwise one, their sum unless given."""

    mean_bound: float | None = setting(
        0.03, "ε_μ, bound on the mean part", above=0.0, optional=True, search=Real(3e-3, 0.3, log=True)
    )
    cov_bound: float | None = setting(
        1e-3, "ε_Σ, bound on the covariance part", above=0.0, optional=True, search=Real(1e-5, 1e-2, log=True)
    )
    bound: float | None = setting(
        None, "ε, bound on the whole KL", above=0.0, optional=True, search=Real(3e-3, 0.3, log=True)
    )

    @property
    def whole_bound(self) -> float:
        """The bound on the whole KL."""
        return self.bound or (self.mean_bound or 0.0) + (self.cov_bound or 0.0)  # `check_together` lets one form pass

    def check_together(self) -> None:
        """Refuse a missing or a redundant bound.

        Raises:
            ConfigError: Neither the two bounds nor the single one are given, or both are.
        """
        super().check_together()
        given = {name: self.get(name) is not None for name in ("mean_bound", "cov_bound", "bound")}
        if given["mean_bound"] != given["cov_bound"] or given["mean_bound"] == given["bound"]:
            raise ConfigError(
                f"method {self.method!r} takes mean_bound and cov_bound (for a Gaussian policy), or bound (for every"
                f" other): given are {', '.join(name for name in given if given[name]) or 'none of them'}"
            )


@dataclass(frozen=True, kw_only=True)
class Wasserstein(Separate):
    """Settings of the Wasserstein region."""

    cov_bound: float = setting(1e-3, "ε_Σ, bound on the covariance part", above=0.0, search=Real(1e-4, 0.1, log=True))
    wasserstein_form: str = setting("commuting", "for full covariances", choices=("commuting", "exact"))


@dataclass(frozen=True, kw_only=True)
class Frobenius(Separate):
    """Settings of the Frobenius region."""

    whitened: bool = setting(False, "measure the Frobenius norm in units of the old covariance")
    released_penalty: bool | None = setting(
        None, "the authors' release's Frobenius penalty: its gradient also goes through the projection", optional=True
    )


@dataclass(frozen=True, kw_only=True)
class Joint(TrustRegion):
    """Settings of the region with one bound on the whole KL."""

    bound: float = setting(0.031, "ε, bound on the whole KL", above=0.0, search=Real(3e-3, 0.3, log=True))


FULL_REGRESSION: Values = {"regression": "full", "regression_weight": 0.0, "regression_epochs": 10}
# Discrete tasks, not in the paper: tuned on one seed of each task, none of those in results/discrete.
_discrete: Values = {"bound": 0.05, "regression_weight": 1.0, "learning_rate": 3e-4, "minibatch_size": 64}
DISCRETE: Mapping[str, Values] = {
    "control": {**_discrete, "policy_epochs": 10},
    "lunar": {**_discrete, "policy_epochs": 5},
}
# Settings that an entropy schedule implies, by table; tables that have none take those of MuJoCo.
_mujoco: Values = {
    "entropy_schedule": "exponential",
    "target_entropy": 0.0,
    "temperature": 0.5,
    "entropy_equality": False,
}
ENTROPY: Mapping[str, Values] = {
    **dict.fromkeys(("mujoco", *DISCRETE, "reacher", "episodic"), _mujoco),
    "humanoid": {**_mujoco, "temperature": 0.2, "entropy_equality": True},
}
COLUMNS: Mapping[str, Values] = {  # values common to all regions that differ from the defaults
    "humanoid": {"policy_epochs": 10, "learning_rate": 1e-4, "minibatch_size": 256},
    "reacher": {"learning_rate": 3e-4, "minibatch_size": 256},
    "episodic": {"learning_rate": 1e-3},
}
EPISODIC: Values = {"mean_bound": 0.05, "cov_bound": 5e-3}


def implied(table: str, overrides: Values) -> Values:
    """Return the settings that full regression, an entropy schedule or bounds in the place of the preset's imply."""
    found = dict(FULL_REGRESSION) if overrides.get("regression") == "full" else {}
    if overrides.get("entropy_schedule", "none") != "none":
        found |= ENTROPY[table]
    if overrides.get("entropy_schedule") == "linear":
        found["temperature"] = None
    if overrides.get("bound") is not None:
        found |= {"mean_bound": None, "cov_bound": None}
    elif any(overrides.get(name) is not None for name in ("mean_bound", "cov_bound")):
        found |= {"bound": None}
    return found


def needs_schedule(values: Values, *, plain: str) -> None:
    """Refuse a `-e` method without a schedule: it would be the method `plain`."""
    if values.get("entropy_schedule", "none") == "none":
        raise ConfigError(f"method '{plain}-e' controls the entropy; without a schedule it is {plain!r}")


def register_region(
    name: str,
    label: str,
    colours: tuple[str, str],
    settings: type[TrustRegion],
    layer: LayerSpec,
    *,
    columns: Mapping[str, Values],
    source: str = "{table}; {budget}",
    rows: tuple[int, int] | None = None,
    dash: str = "",
) -> None:
    """Register the method of a region and, if the paper has it, the one with entropy control (`-e`, dashed)."""
    columns = {table: {**COLUMNS.get(table, {}), **values} for table, values in columns.items()}
    row, entropy_row = rows or (None, None)
    plain = Method(
        name=name,
        label=label,
        style=Style(*colours, dash),
        settings=settings,
        make="trpl.algorithms.trpl:make",
        layer=layer,
        columns=columns,
        source=source,
        implied=implied,
        row=row,
        needs_gaussian="bound" not in (layer.otherwise or layer).arguments,
    )
    register(plain)
    if entropy_row is None:
        return
    tables = columns | {table: {**columns.get(table, {}), **entropy} for table, entropy in ENTROPY.items()}
    tables["reacher"]["source"] = "{table}; entropy control from the MuJoCo table; {budget}"
    register(
        replace(
            plain,
            name=f"{name}-e",
            label=f"{label}-E",
            style=Style(*colours, palette.DASHED),
            columns=tables,
            row=entropy_row,
            controls_entropy=True,
            check=partial(needs_schedule, plain=name),
        )
    )


JOINT = LayerSpec("JointKLProjection", {"bound": "bound"}, bounds_kl=True)
BOUNDS = {"mean_bound": "mean_bound", "cov_bound": "cov_bound", "entropy_first": "entropy_first"}

register_region(
    "frobenius",
    "FROB",
    palette.GREEN,
    Frobenius,
    LayerSpec("FrobeniusProjection", {**BOUNDS, "whitened": "whitened"}),
    columns={"humanoid": {"mean_bound": 0.05, "cov_bound": 1e-4}, "reacher": {"cov_bound": 5e-5}, "episodic": EPISODIC},
    rows=(0, 6),
)
register_region(
    "w2",
    "W2",
    palette.VERMILION,
    Wasserstein,
    LayerSpec("WassersteinProjection", {**BOUNDS, "form": "wasserstein_form"}),
    columns={"humanoid": {"mean_bound": 0.05, "cov_bound": 0.01}, "reacher": {}, "episodic": EPISODIC},
    rows=(1, 7),
)
register_region(
    "kl",
    "KL",
    palette.BLUE,
    SeparateKL,
    LayerSpec("KLProjection", BOUNDS, bounds_kl=True, otherwise=JOINT),
    columns={
        **{table: {"mean_bound": None, "cov_bound": None, **values} for table, values in DISCRETE.items()},
        "humanoid": {"mean_bound": 0.05, "cov_bound": 1e-4},
        "reacher": {"cov_bound": 5e-5},
        "reacher contextual": {"cov_bound": 1e-3},  # "the second value for ε_Σ of the KL projection"
        "episodic": EPISODIC,
    },
    rows=(2, 8),
)
register_region(
    "kl-joint",
    "KL-JOINT",
    palette.SKY,
    Joint,
    JOINT,
    columns={
        **DISCRETE,
        "humanoid": {"bound": 0.0501},
        "reacher": {"bound": 0.03005},
        "reacher contextual": {"bound": 0.031},
        "episodic": {"bound": 0.055},
    },
    source="{table}, KL column with ε = ε_μ + ε_Σ; {budget}",
    dash=palette.DASH_DOT,
)
