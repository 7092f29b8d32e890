"""The configuration of a run: frozen, flat, one name per hyperparameter.

`Config` holds what every method has; each family of methods adds its own settings in a frozen dataclass of its own
(`trpl.methods`), so that a method simply does not have what means nothing to it. The same name stands in the preset, on
the command line, in `config.json` and in the code.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Self

from trpl.errors import ConfigError
from trpl.policies.actions import UNITS
from trpl.settings.fields import checked, setting
from trpl.settings.search import Choice, Real, Whole

ENV_ID = re.compile(r"(?!\.)[\w.:-]+(/(?!\.)[\w.:-]+)?")  # also the name of the run folder's parents: no way up or out
WINDOW = 20  # epochs: a run's two numbers are means over the 20 after a fifth of training and over the last 20
# Settings that change nothing of what is computed: runs that differ only here are the same experiment, and they may
# change in the middle of a run. (Seed and source apart: a seed is what runs of one experiment differ in.)
WITHOUT_EFFECT = frozenset({"checkpoint_every", "env_timeout"})
NOT_COMPARED = WITHOUT_EFFECT | {"seed", "source"}


@dataclass(frozen=True, kw_only=True)
class Config:
    """Everything needed to repeat a run, as far as every method has it.

    Made by `trpl.presets.preset(method, env_id, **settings)`, which checks names; the values are checked here.

    Raises:
        ConfigError: A value is of the wrong type, out of range, or does not fit another one.
    """

    method: str = setting("kl", "what to train with")
    env_id: str = setting("HalfCheetah-v4", "Gymnasium's name of the task")
    seed: int = setting(0, "fixes the run: the same seed gives the same weights", least=0, most=2**32 - 1)
    total_steps: int = setting(3_000_000, "environment steps, rounded up to whole epochs", least=1)
    stop_after: int | None = setting(
        None, "environment steps after which the run ends, its schedules those of total_steps", least=1, optional=True
    )
    source: str = setting("", "where the numbers come from")
    env_kwargs: dict[str, Any] = setting({}, "arguments of the environment", hash=False)  # noqa: RUF009
    warm_start: str = setting("", "a run, or a checkpoint of one, whose weights and normaliser to start from")

    policy: str = setting(
        "gaussian",
        "what acts in a Box: a Gaussian, one squashed by tanh into the box, or a Beta within it",
        choices=("gaussian", "squashed", "beta"),
    )
    action_units: str = setting(
        "raw", "what an action of 1 means: 1, or half the action box from its middle", choices=UNITS
    )
    clip_actions: bool = setting(False, "hold actions within the action box")
    initial_std: float = setting(1.0, "of the first policy, in the units of actions", above=1e-4, most=1e4)

    rollout_size: int = setting(2048, "environment steps per epoch, over all environments", least=2)
    num_envs: int = setting(1, "environments stepped side by side; divides rollout_size", least=1)
    vectorisation: str = setting(
        "sync", "how environments are stepped", choices=("sync", "threads", "processes", "envpool")
    )
    discount: float = setting(0.99, "γ", least=0.0, most=1.0)
    gae_lambda: float = setting(0.95, "λ of the generalised advantage estimate", least=0.0, most=1.0)

    value_epochs: int = setting(
        10, "passes over the rollout for the value function", least=1, search=Whole(3, 30, log=True)
    )
    learning_rate_vf: float = setting(
        4.5e-4, "Adam's, for the value function", above=0.0, search=Real(3e-5, 3e-3, log=True)
    )
    learning_rate_decay: bool = setting(False, "let both learning rates fall to 0 linearly")
    minibatch_size: int = setting(32, "samples per update", least=2, search=Choice((32, 64, 128, 256, 512)))
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

    eval_every: int = setting(
        1, "evaluate every so many epochs, and each epoch of the table's two windows; 0: never", least=0
    )
    eval_episodes: int = setting(5, "noise-free episodes per evaluation", least=1)
    checkpoint_every: int = setting(20, "epochs between checkpoints", least=1)
    env_timeout: float | None = setting(
        300.0, "seconds without a step after which an environment hangs and the run is ended", above=0.0, optional=True
    )

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = checked(field, type(self), getattr(self, field.name), method=self.method)
            object.__setattr__(self, field.name, value)
        self.check_together()

    def check_together(self) -> None:
        """Refuse settings that do not fit each other; a family adds its own checks to these.

        Raises:
            ConfigError: Two of them do not.
        """
        if not ENV_ID.fullmatch(self.env_id) or len(self.env_id) > 200:
            raise ConfigError(
                f"env_id {self.env_id[:80]!r} is not a name of the form Name-v0, space/Name-v0 or module:Name-v0"
            )
        if self.rollout_size % self.num_envs:
            below = self.rollout_size // self.num_envs * self.num_envs
            raise ConfigError(
                f"rollout_size {self.rollout_size} does not divide by num_envs {self.num_envs}; "
                f"the nearest that do are {below} and {below + self.num_envs}"
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
        """Refuse a configuration in which a setting is None although something needs it.

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
        """Refuse a configuration in which a setting is given although it means nothing.

        Args:
            *names: The settings.
            without: What they would need, for the message.

        Raises:
            ConfigError: One of them is given.
        """
        for name in names:
            if self.get(name) is not None:
                raise ConfigError(f"{name} means nothing without {without}")

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
        """Count the iterations of collecting and learning that schedules stretch over."""
        return math.ceil(self.total_steps / self.rollout_size)

    @property
    def last_epoch(self) -> int:
        """Number the epoch the run ends with, counted from 1."""
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
            Its value; None where this method does not have it.
        """
        return getattr(self, name) if name in self.names() else None

    def replace(self, **changes: Any) -> Self:
        """Copy with other values.

        Args:
            **changes: Settings by name.

        Returns:
            The new configuration.
        """
        return dataclasses.replace(self, **changes)

    def to_json(self) -> dict[str, Any]:
        """Give the settings as values that JSON can hold.

        Returns:
            The settings by name.
        """
        return {name: list(v) if isinstance(v, tuple) else v for name, v in dataclasses.asdict(self).items()}


@dataclass(frozen=True, kw_only=True)
class PolicyEpochs(Config):
    """Settings of methods whose policy is trained by epochs of gradient steps."""

    policy_epochs: int = setting(20, "passes over the rollout for the policy", least=1, search=Whole(3, 40, log=True))
    learning_rate: float = setting(5e-5, "Adam's, for the policy", above=0.0, search=Real(1e-5, 1e-3, log=True))


def differing(one: Config, other: Config, *, apart_from: Iterable[str] = NOT_COMPARED) -> list[str]:
    """Name the settings in which two configurations differ.

    Args:
        one: A configuration.
        other: Another one.
        apart_from: Settings that are not compared; those that change nothing by default.

    Returns:
        The names.
    """
    names = dict.fromkeys((*one.names(), *other.names()))
    return [name for name in names if name not in apart_from and one.get(name) != other.get(name)]
