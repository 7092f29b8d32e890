"""The configuration of a run: frozen, flat, one name per hyperparameter.

`Config` holds the settings common to all methods; each family of methods adds its own in a frozen dataclass
(`trpl.methods`), so a method has no settings that do not apply to it. A setting has the same name in the preset, on the
command line, in `config.json` and in the code.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

from trpl.errors import ConfigError
from trpl.policies.actions import UNITS
from trpl.settings.fields import checked, setting
from trpl.settings.search import Choice, Real, Whole

ENV_ID = re.compile(r"(?!\.)[\w.:-]+(/(?!\.)[\w.:-]+)?")  # also a path in the output folder, so ".." is excluded
WINDOW = 20  # epochs: a run's two scores are means over the 20 after a fifth of training and over the last 20
# Settings without effect on results: runs that differ only in them are the same experiment, and they may change
# when a run is resumed. Seed and source distinguish runs of one experiment.
WITHOUT_EFFECT = frozenset({"checkpoint_every", "env_timeout"})
NOT_COMPARED = WITHOUT_EFFECT | {"seed", "source"}

run_setting = partial(setting, topic="the run")
policy_setting = partial(setting, topic="policy and networks")
collecting_setting = partial(setting, topic="collecting")
learning_setting = partial(setting, topic="learning")
released_setting = partial(setting, topic="computing as the authors' release does")


@dataclass(frozen=True, kw_only=True)
class Config:
    """The settings common to all methods; with those of its method, everything needed to repeat a run.

    Use `trpl.presets.preset(method, env_id, **settings)` to make one; it checks names. Values are checked here.

    Raises:
        ConfigError: A value has the wrong type, is out of range, or contradicts another.
    """

    method: str = setting("kl", "the training method")
    env_id: str = setting("HalfCheetah-v4", "the task's Gymnasium name")
    seed: int = run_setting(0, "random seed: the same seed gives the same weights", least=0, most=2**32 - 1)
    total_steps: int = run_setting(3_000_000, "environment steps, rounded up to whole epochs", least=1)
    stop_after: int | None = run_setting(
        None, "environment steps after which the run ends; schedules still span total_steps", least=1, optional=True
    )
    source: str = run_setting("", "origin of the numbers")
    env_kwargs: dict[str, Any] = run_setting({}, "arguments of the environment", hash=False)  # noqa: RUF009
    warm_start: str = run_setting("", "a run or checkpoint whose weights and normaliser to start from")

    policy: str = policy_setting(
        "gaussian",
        "policy for a Box: a Gaussian, one squashed by tanh into the box, or a Beta on the box",
        choices=("gaussian", "squashed", "beta"),
    )
    action_units: str = policy_setting(
        "raw", "the unit of an action: 1, or half the width of the action box from its middle", choices=UNITS
    )
    clip_actions: bool = policy_setting(False, "clip actions to the action box")
    initial_std: float = policy_setting(
        1.0, "standard deviation of the first policy, in action units", above=1e-4, most=1e4
    )

    rollout_size: int = collecting_setting(2048, "environment steps per epoch, over all environments", least=2)
    num_envs: int = collecting_setting(1, "environments stepped in parallel; must divide rollout_size", least=1)
    vectorisation: str = collecting_setting(
        "sync", "how environments are stepped", choices=("sync", "threads", "processes", "envpool")
    )
    discount: float = learning_setting(0.99, "γ", least=0.0, most=1.0)
    gae_lambda: float = learning_setting(0.95, "λ of the generalised advantage estimate", least=0.0, most=1.0)

    value_epochs: int = learning_setting(
        10, "passes over the rollout for the value function", least=1, search=Whole(3, 30, log=True)
    )
    learning_rate_vf: float = learning_setting(
        4.5e-4, "Adam's rate for the value function", above=0.0, search=Real(3e-5, 3e-3, log=True)
    )
    learning_rate_decay: bool = learning_setting(False, "decay both learning rates linearly to 0")
    minibatch_size: int = learning_setting(32, "samples per update", least=2, search=Choice((32, 64, 128, 256, 512)))
    gradient_clip: float | None = learning_setting(None, "largest gradient norm", above=0.0, optional=True)
    entropy_weight: float = learning_setting(0.0, "weight of an entropy bonus in the loss", least=0.0)

    normalise_observations: bool = collecting_setting(True, "normalise by running mean and variance")
    normalise_rewards: bool = collecting_setting(False, "normalise by the running deviation of the discounted return")
    observation_clip: float | None = collecting_setting(
        None, "clip normalised observations at ± this", above=0.0, optional=True
    )
    reward_clip: float | None = collecting_setting(None, "clip normalised rewards at ± this", above=0.0, optional=True)

    covariance: str = policy_setting("diagonal", "structure of the covariance", choices=("diagonal", "full"))
    contextual: bool = policy_setting(False, "a covariance per state instead of one for all")
    hidden_sizes: tuple[int, ...] = policy_setting((64, 64), "tanh layers of the policy", least=1)
    hidden_sizes_vf: tuple[int, ...] = policy_setting((64, 64), "tanh layers of the value function", least=1)

    released_variance: bool = released_setting(
        False, "running variances as in the authors' release: they grow with the logarithm of the steps"
    )
    released_evaluation: bool = released_setting(
        False, "evaluate as the authors' release does: steps left over from earlier episodes cut test episodes short"
    )
    released_time_limits: bool = released_setting(
        False, "at a time limit use advantage 0 and return V(s), as in the authors' release, instead of a bootstrap"
    )
    released_deviation: bool = released_setting(
        False, "normalise advantages by the deviation with n - 1, as in the authors' release, instead of n"
    )

    eval_every: int = run_setting(
        1, "epochs between evaluations, besides every epoch of the table's two windows; 0: never", least=0
    )
    eval_episodes: int = run_setting(5, "noise-free episodes per evaluation", least=1)
    checkpoint_every: int = run_setting(20, "epochs between checkpoints", least=1)
    env_timeout: float | None = run_setting(
        300.0, "seconds without a step after which the environment is hung and the run ends", above=0.0, optional=True
    )

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = checked(field, type(self), getattr(self, field.name), method=self.method)
            object.__setattr__(self, field.name, value)
        self.check_together()

    def check_together(self) -> None:
        """Refuse settings that contradict each other; families extend this with their own checks.

        Raises:
            ConfigError: Two settings contradict each other.
        """
        if not ENV_ID.fullmatch(self.env_id) or len(self.env_id) > 200:
            raise ConfigError(
                f"env_id {self.env_id[:80]!r} is not a name of the form Name-v0, space/Name-v0 or module:Name-v0"
            )
        if self.rollout_size % self.num_envs:
            below = self.rollout_size // self.num_envs * self.num_envs
            raise ConfigError(
                f"rollout_size {self.rollout_size} is not a multiple of num_envs {self.num_envs}; "
                f"the nearest multiples are {below} and {below + self.num_envs}"
            )
        if self.minibatch_size > self.rollout_size:
            raise ConfigError(f"minibatch_size {self.minibatch_size} is larger than rollout_size {self.rollout_size}")
        if self.rollout_size % self.minibatch_size == 1:
            raise ConfigError(
                f"minibatch_size {self.minibatch_size} leaves one sample over from rollout_size {self.rollout_size}, "
                "and the advantage of a single sample cannot be normalised"
            )
        if not self.normalise_observations:
            self.refuse("observation_clip", without="normalise_observations")
        if not self.normalise_rewards:
            self.refuse("reward_clip", without="normalise_rewards")

    def need(self, *names: str, reason: str) -> None:
        """Refuse a configuration that lacks settings that it needs.

        Args:
            *names: The settings.
            reason: What needs them, for the message.

        Raises:
            ConfigError: One of them is None.
        """
        for name in names:
            if name in self.names() and getattr(self, name) is None:
                raise ConfigError(f"{reason} needs {name} ({self.field(name).metadata['help']})")

    def refuse(self, *names: str, without: str) -> None:
        """Refuse a configuration with settings that do not apply to it.

        Args:
            *names: The settings.
            without: The condition under which they apply, for the message.

        Raises:
            ConfigError: One of them is given.
        """
        for name in names:
            if self.get(name) is not None:
                raise ConfigError(f"{name} has no effect without {without}")

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """List the names of the settings.

        Returns:
            The names.
        """
        return tuple(field.name for field in dataclasses.fields(cls))

    @classmethod
    def field(cls, name: str) -> dataclasses.Field:
        """Find the declaration of a setting, with its rules in `metadata`.

        Args:
            name: The name of the setting.

        Returns:
            The field.
        """
        return cls.__dataclass_fields__[name]

    @property
    def num_epochs(self) -> int:
        """The number of epochs that schedules span."""
        return math.ceil(self.total_steps / self.rollout_size)

    @property
    def last_epoch(self) -> int:
        """The epoch that the run ends with, counted from 1."""
        return min(self.num_epochs, math.ceil((self.stop_after or self.total_steps) / self.rollout_size))

    def evaluates(self, epoch: int) -> bool:
        """Tell whether an epoch ends with an evaluation.

        Args:
            epoch: 1, 2, ...

        Returns:
            Whether it does.
        """
        if not self.eval_every:
            return False
        fifth = self.num_epochs // 5
        in_window = fifth < epoch <= fifth + WINDOW or epoch > self.num_epochs - WINDOW
        return in_window or epoch % self.eval_every == 0

    def get(self, name: str) -> Any:
        """Look up a setting by name.

        Args:
            name: The name of the setting.

        Returns:
            Its value; None if the method lacks it.
        """
        return getattr(self, name) if name in self.names() else None

    def replace(self, **changes: Any) -> Self:
        """Copy the configuration with some values replaced.

        Args:
            **changes: Settings by name.

        Returns:
            The new configuration.
        """
        return dataclasses.replace(self, **changes)

    def to_json(self) -> dict[str, Any]:
        """Return the settings as values that JSON can hold.

        Returns:
            The settings by name.
        """
        return {name: list(v) if isinstance(v, tuple) else v for name, v in dataclasses.asdict(self).items()}


@dataclass(frozen=True, kw_only=True)
class PolicyEpochs(Config):
    """Settings of methods that train the policy by epochs of gradient steps."""

    policy_epochs: int = setting(20, "passes over the rollout for the policy", least=1, search=Whole(3, 40, log=True))
    learning_rate: float = setting(5e-5, "Adam's rate for the policy", above=0.0, search=Real(1e-5, 1e-3, log=True))


def differing(one: Config, other: Config, *, apart_from: Iterable[str] = NOT_COMPARED) -> list[str]:
    """Name the settings in which two configurations differ.

    Args:
        one: A configuration.
        other: Another one.
        apart_from: Settings to ignore; by default seed, source and those without effect on results.

    Returns:
        The names.
    """
    names = dict.fromkeys((*one.names(), *other.names()))
    return [name for name in names if name not in apart_from and one.get(name) != other.get(name)]
