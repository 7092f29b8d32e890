"""The configuration of a run: frozen, flat, one name per hyperparameter.

The same name stands in the preset, on the command line, in `config.json` and in the code. A setting that means
nothing to a method is `None` there, and giving it is an error: no argument does nothing.
"""

import dataclasses
import difflib
import math
import re
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from trpl.errors import ConfigError

PROJECTIONS = ("kl", "w2", "frobenius")
WITH_PARTS = (*PROJECTIONS, *(f"{name}-e" for name in PROJECTIONS))
TRUST_REGION = (*WITH_PARTS, "kl-joint")
PAPI = ("papi", "papi-gradient")
CLIPPED = ("ppo", "ppo-m", *PAPI)
METHODS = (*TRUST_REGION, *CLIPPED, "trpo")

LARGEST = 10**12  # of whole numbers
ENV_ID = re.compile(r"(?!\.)[\w.:-]+(/(?!\.)[\w.:-]+)?")  # also the name of the run folder's parents: no way up or out
AS_RELEASED = "as_released"  # short for all of the next, wherever settings are given for a preset
RELEASED = ("variance", "evaluation", "time_limits", "deviation", "penalty")
REPORT_WINDOW = 20  # epochs: a run's two numbers are means over the 20 after a fifth of training and over the last 20


def setting(default: Any, help: str, **rules: Any) -> Any:
    """A field with its help text and rules: `above`, `least`, `below`, `most`, `choices`, `methods`, `optional`."""
    return dataclasses.field(default=default, metadata={"help": help, **rules})


@dataclass(frozen=True, kw_only=True)
class Config:
    """Everything needed to repeat a run."""

    method: str = setting("kl", "what to train with", choices=METHODS)
    env_id: str = setting("HalfCheetah-v4", "Gymnasium's name of the task")
    seed: int = setting(0, "fixes the run: the same seed gives the same weights", least=0, most=2**32 - 1)
    total_steps: int = setting(3_000_000, "environment steps, rounded up to whole epochs", least=1)
    source: str = setting("", "where the numbers come from")

    rollout_size: int = setting(2048, "environment steps per epoch, over all environments", least=2)
    num_envs: int = setting(1, "environments stepped side by side; divides rollout_size", least=1)
    vectorisation: str = setting("sync", "how environments are stepped", choices=("sync", "envpool"))
    discount: float = setting(0.99, "γ", least=0.0, most=1.0)
    gae_lambda: float = setting(0.95, "λ of the generalised advantage estimate", least=0.0, most=1.0)

    mean_bound: float | None = setting(None, "ε_μ, bound on the mean part", above=0.0, methods=WITH_PARTS)
    cov_bound: float | None = setting(None, "ε_Σ, bound on the covariance part", above=0.0, methods=WITH_PARTS)
    bound: float | None = setting(None, "ε, bound on the whole KL", above=0.0, methods=("kl-joint", *PAPI, "trpo"))
    wasserstein_form: str | None = setting(
        None, "for full covariances", choices=("commuting", "exact"), methods=("w2", "w2-e")
    )
    whitened: bool | None = setting(
        None, "measure the Frobenius norm in units of the old covariance", methods=("frobenius", "frobenius-e")
    )
    entropy_schedule: str | None = setting(
        None, "course of the entropy bound", choices=("none", "exponential", "linear"), methods=TRUST_REGION
    )
    target_entropy: float | None = setting(
        None, "κ, final entropy per action dimension", methods=TRUST_REGION, optional=True
    )
    temperature: float | None = setting(
        None, "τ of the exponential schedule", above=0.0, most=1.0, methods=TRUST_REGION, optional=True
    )
    entropy_equality: bool | None = setting(
        None, "hold the entropy at the schedule instead of above it", methods=TRUST_REGION, optional=True
    )
    entropy_first: bool | None = setting(
        None, "set the entropy before the trust region, not after it", methods=WITH_PARTS, optional=True
    )
    regression: str | None = setting(
        None,
        "how the network is pulled to its projection: a penalty, or supervised epochs afterwards",
        choices=("penalty", "full"),
        methods=TRUST_REGION,
    )
    regression_weight: float | None = setting(None, "α, weight of the penalty", least=0.0, methods=TRUST_REGION)
    regression_epochs: int | None = setting(
        None, "supervised epochs of the full regression", least=1, methods=TRUST_REGION, optional=True
    )

    ratio_clip: float | None = setting(None, "importance ratios are clipped at 1 ± this", above=0.0, methods=CLIPPED)
    value_clip: float | None = setting(
        None, "largest step of a value per epoch that is still paid", above=0.0, methods=CLIPPED, optional=True
    )
    cg_steps: int | None = setting(None, "conjugate-gradient steps", least=1, methods=("trpo",))
    cg_damping: float | None = setting(None, "added to the Fisher matrix's diagonal", least=0.0, methods=("trpo",))
    line_search_steps: int | None = setting(None, "halvings tried by the line search", least=1, methods=("trpo",))

    policy_epochs: int | None = setting(
        20, "passes over the rollout for the policy", least=1, methods=tuple(m for m in METHODS if m != "trpo")
    )
    value_epochs: int = setting(10, "passes over the rollout for the value function", least=1)
    learning_rate: float | None = setting(
        5e-5, "Adam's, for the policy", above=0.0, methods=tuple(m for m in METHODS if m != "trpo")
    )
    learning_rate_vf: float = setting(4.5e-4, "Adam's, for the value function", above=0.0)
    learning_rate_decay: bool = setting(False, "let both learning rates fall to 0 linearly")
    minibatch_size: int = setting(32, "samples per update", least=2)
    gradient_clip: float | None = setting(None, "largest norm of a gradient", above=0.0, optional=True)
    entropy_weight: float = setting(0.0, "weight of an entropy bonus in the loss", least=0.0)

    normalise_observations: bool = setting(True, "by running mean and variance")
    normalise_rewards: bool = setting(False, "by the running deviation of the discounted return")
    observation_clip: float | None = setting(None, "after normalisation", above=0.0, optional=True)
    reward_clip: float | None = setting(None, "after normalisation", above=0.0, optional=True)

    covariance: str = setting("diagonal", "structure of the covariance", choices=("diagonal", "full"))
    contextual: bool = setting(False, "a covariance per state instead of one for all")
    hidden_sizes: tuple[int, ...] = setting((64, 64), "tanh layers of the policy", least=1)
    hidden_sizes_vf: tuple[int, ...] = setting((64, 64), "tanh layers of the value function", least=1)

    released_variance: bool = setting(
        False, "running variances as the authors' release computes them: they grow with the logarithm of the steps"
    )
    released_evaluation: bool = setting(
        False, "evaluate as the authors' release: test episodes are cut by steps left over from earlier ones"
    )
    released_time_limits: bool = setting(
        False, "at a time limit advantage 0 and return V(s), as in the authors' release, instead of a bootstrap"
    )
    released_deviation: bool = setting(
        False, "normalise advantages by the deviation with n - 1, as the authors' release, instead of n"
    )
    released_penalty: bool | None = setting(
        None,
        "the authors' release's Frobenius penalty: its gradient also goes through the projection",
        methods=("frobenius", "frobenius-e"),
        optional=True,
    )

    eval_every: int = setting(
        1, "evaluate every so many epochs, and each epoch of the two windows the paper's table averages", least=1
    )
    eval_episodes: int = setting(5, "noise-free episodes per evaluation", least=1)
    checkpoint_every: int = setting(20, "epochs between checkpoints", least=1)
    env_timeout: float | None = setting(
        300.0, "seconds without a step after which an environment hangs and the run is ended", above=0.0, optional=True
    )

    def __post_init__(self):
        if self.method not in METHODS:
            raise ConfigError(
                f"method {self.method!r} is not one of {', '.join(METHODS)}{nearest(self.method, METHODS)}"
            )
        for field in dataclasses.fields(self):
            _check(self, field)
        _check_together(self)

    @property
    def num_epochs(self) -> int:
        """Iterations of collecting and learning."""
        return math.ceil(self.total_steps / self.rollout_size)

    @property
    def entropy_controlled(self) -> bool:
        return self.entropy_schedule not in (None, "none")

    def evaluates(self, epoch: int) -> bool:
        """Whether epoch 1, 2, ... ends with an evaluation."""
        fifth = self.num_epochs // 5
        in_window = fifth < epoch <= fifth + REPORT_WINDOW or epoch > self.num_epochs - REPORT_WINDOW
        return in_window or epoch % self.eval_every == 0

    def replace(self, **changes: Any) -> "Config":
        """A copy with other values; unknown names are refused with the nearest right one."""
        check_names(changes)
        return dataclasses.replace(self, **changes)

    def to_json(self) -> dict[str, Any]:
        return {name: list(v) if isinstance(v, tuple) else v for name, v in dataclasses.asdict(self).items()}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "Config":
        if not isinstance(values, Mapping):
            raise ConfigError(f"settings by name were wanted, not {values!r}")
        check_names(values)
        fields: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in values.items()}
        return cls(**fields)


NAMES = tuple(field.name for field in dataclasses.fields(Config))
TYPES = typing.get_type_hints(Config)


def nearest(name: str, known: Iterable[str]) -> str:
    """'; did you mean …?' where something is near enough, else the empty string."""
    found = difflib.get_close_matches(str(name), list(known), n=1, cutoff=0.5)
    return f"; did you mean {found[0]!r}?" if found else ""


def check_names(names: Iterable[str], *, short: bool = False) -> None:
    """Refuse unknown settings; `short` allows `as_released` as well."""
    for name in names:
        if short and name == AS_RELEASED:
            continue
        if name not in NAMES:
            raise ConfigError(f"there is no setting {name!r}{nearest(name, NAMES)}")


def applies(name: str, method: str) -> bool:
    """Whether a setting means anything to a method."""
    return method in Config.__dataclass_fields__[name].metadata.get("methods", METHODS)


def plain_type(name: str) -> type:
    """The type of a setting's value, `X | None` counted as X."""
    hint = TYPES[name]
    members = [t for t in typing.get_args(hint) if t is not types.NoneType]
    return members[0] if isinstance(hint, types.UnionType) else hint


def _check(config: Config, field: dataclasses.Field) -> None:
    value, rules = getattr(config, field.name), field.metadata
    if not applies(field.name, config.method):
        if value is not None:
            raise ConfigError(
                f"{field.name} means nothing to method {config.method!r}; it is for {', '.join(rules['methods'])}"
            )
        return
    if value is None:
        if not rules.get("optional"):
            raise ConfigError(f"method {config.method!r} needs {field.name} ({rules['help']})")
        return
    value = _typed(field.name, value)
    object.__setattr__(config, field.name, value)
    choices = rules.get("choices")
    if choices and value not in choices:
        raise ConfigError(f"{field.name} {value!r} is not one of {', '.join(choices)}{nearest(value, choices)}")
    for number in value if isinstance(value, tuple) else (value,):
        _check_range(field.name, number, rules)


def _typed(name: str, value: Any) -> Any:
    wanted = plain_type(name)
    for number in value if isinstance(value, tuple | list) else (value,):
        if type(number) is int and abs(number) > LARGEST:
            raise ConfigError(f"{name} must be at most {LARGEST:g}")
    if wanted is float and type(value) is int:
        return float(value)
    if typing.get_origin(wanted) is tuple:
        if isinstance(value, tuple | list) and value and all(type(v) is int for v in value):
            return tuple(value)
        raise ConfigError(f"{name} wants one or more whole numbers, not {value!r}")
    if type(value) is not wanted:
        words = {int: "a whole number", float: "a number", bool: "true or false", str: "a name"}
        raise ConfigError(f"{name} wants {words[wanted]}, not {value!r}")
    return value


def _check_range(name: str, value: Any, rules: Mapping[str, Any]) -> None:
    tests = {
        "above": (lambda v, limit: v > limit, "above"),
        "least": (lambda v, limit: v >= limit, "at least"),
        "below": (lambda v, limit: v < limit, "below"),
        "most": (lambda v, limit: v <= limit, "at most"),
    }
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"{name} must be a finite number, not {value}")
    for rule, (holds, words) in tests.items():
        if rule in rules and not holds(value, rules[rule]):
            raise ConfigError(f"{name} must be {words} {rules[rule]:g}, not {value:g}")


def _check_together(config: Config) -> None:
    if not ENV_ID.fullmatch(config.env_id) or len(config.env_id) > 200:
        raise ConfigError(
            f"env_id {config.env_id[:80]!r} is not a name of the form Name-v0, space/Name-v0 or module:Name-v0"
        )
    if config.rollout_size % config.num_envs:
        below = config.rollout_size // config.num_envs * config.num_envs
        raise ConfigError(
            f"rollout_size {config.rollout_size} does not divide by num_envs {config.num_envs}; "
            f"the nearest that do are {below} and {below + config.num_envs}"
        )
    if config.minibatch_size > config.rollout_size:
        raise ConfigError(f"minibatch_size {config.minibatch_size} is larger than rollout_size {config.rollout_size}")
    if config.rollout_size % config.minibatch_size == 1:
        raise ConfigError(
            f"minibatch_size {config.minibatch_size} leaves one sample over from rollout_size {config.rollout_size}, "
            "and the advantage of a single sample cannot be normalised"
        )
    if config.method.endswith("-e") and not config.entropy_controlled:
        raise ConfigError(
            f"method {config.method!r} controls the entropy; without a schedule it is {config.method[:-2]!r}"
        )
    if config.entropy_controlled:
        _need(config, ("target_entropy", "entropy_equality"), f"entropy_schedule {config.entropy_schedule!r}")
        if config.entropy_schedule == "exponential":
            _need(config, ("temperature",), "entropy_schedule 'exponential'")
    else:
        _refuse(config, ("target_entropy", "temperature", "entropy_equality", "entropy_first"), "an entropy_schedule")
    if config.entropy_schedule == "linear":
        _refuse(config, ("temperature",), "entropy_schedule 'exponential'")
    if not config.normalise_observations:
        _refuse(config, ("observation_clip",), "normalise_observations")
    if not config.normalise_rewards:
        _refuse(config, ("reward_clip",), "normalise_rewards")
    if config.regression != "full":
        _refuse(config, ("regression_epochs",), "regression 'full'")
    else:
        _need(config, ("regression_epochs",), "regression 'full'")
        if config.regression_weight:
            raise ConfigError("regression 'full' replaces the penalty: it wants regression_weight 0")
    if config.method in PAPI and config.contextual:
        raise ConfigError(f"method {config.method!r} cannot project a covariance per state: it wants contextual false")


def _need(config: Config, names: Iterable[str], reason: str) -> None:
    for name in names:
        if getattr(config, name) is None and applies(name, config.method):
            raise ConfigError(f"{reason} needs {name} ({Config.__dataclass_fields__[name].metadata['help']})")


def _refuse(config: Config, names: Iterable[str], reason: str) -> None:
    for name in names:
        if getattr(config, name) is not None:
            raise ConfigError(f"{name} means nothing without {reason}")
