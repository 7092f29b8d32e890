"""The value that describes a method."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from trpl.errors import ConfigError
from trpl.policies.heads import Head
from trpl.settings import Config


class Style(NamedTuple):
    """The look of a method in figures.

    Args:
        colour: The colour on a white page.
        dark: The colour on a dark page.
        dash: The dash pattern as SVG writes it; "" is a solid line.
    """

    colour: str
    dark: str
    dash: str = ""


class LayerSpec(NamedTuple):
    """The layer that a method trains through.

    Args:
        kind: The name of a class in `trpl.jax` and in `trpl.torch`.
        arguments: The setting that supplies each of the layer's arguments.
        bounds_kl: Whether the layer bounds a KL divergence.
        otherwise: The layer for non-Gaussian policies, if there is one.
    """

    kind: str
    arguments: Mapping[str, str]
    bounds_kl: bool = False
    otherwise: LayerSpec | None = None

    def build(self, framework: Any, settings: Mapping[str, Any], **options: Any) -> Any:
        """Make the layer in one framework, without checks of values.

        Args:
            framework: The module `trpl.jax` or `trpl.torch`.
            settings: The method's settings by name; one that is None is left out.
            **options: Further arguments of the layer.

        Returns:
            The layer.
        """
        given = {word: settings.get(name) for word, name in self.arguments.items()}
        given = {word: value for word, value in given.items() if value is not None}
        return getattr(framework, self.kind)(**given, **options, check=False)


@dataclass(frozen=True, kw_only=True)
class Method:
    """Everything trpl knows about a method; `register` makes it available everywhere.

    Args:
        name: Its name on the command line and in records.
        settings: The dataclass of its settings: `Config`, `PolicyEpochs`, or a subclass of these.
        make: `make(config, *, obs_size, head, **options)`, which returns an `Algorithm`; or "module:function", imported
            when a run begins.
        label: Its name in tables and figures; the name in capitals by default.
        style: Its look in figures; unused colours by default.
        options: Further arguments for `make`.
        layer: The trust-region layer it trains through, also passed to `make`.
        columns: For each of the paper's tables ("mujoco", "humanoid", "reacher") the values that differ from the
            defaults of `settings`; under "TABLE contextual" those that differ for contextual covariances.
        source: Where these numbers come from; `{table}` and `{budget}` are filled in.
        implied: `implied(table, overrides)` returns the settings that some overrides imply.
        check: `check(values)` refuses settings that this method does not take although others of its family do.
        row: Its row in the paper's Table 1, counted from 0; rows come in blocks of three.
        contextual: Whether it supports contextual covariances; they are refused if not.
        needs_gaussian: Whether it is restricted to Gaussian policies, excluding discrete, Beta and hybrid ones.
        controls_entropy: Whether it is a variant with entropy control, which the paper compares separately.
        figures: Named figures that include it.
    """

    name: str
    settings: type[Config]
    make: Callable[..., Any] | str
    label: str = ""
    style: Style | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    layer: LayerSpec | None = None
    columns: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    source: str = ""
    implied: Callable[[str, Mapping[str, Any]], Mapping[str, Any]] | None = None
    check: Callable[[Mapping[str, Any]], None] | None = None
    row: int | None = None
    contextual: bool = True
    needs_gaussian: bool = False
    controls_entropy: bool = False
    figures: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.label:
            object.__setattr__(self, "label", self.name.upper())

    def configure(self, values: Mapping[str, Any]) -> Config:
        """Make a configuration from settings.

        Args:
            values: Settings by name.

        Returns:
            The configuration.

        Raises:
            ConfigError: A value is out of range, or the settings do not fit together.
        """
        if values.get("contextual") and not self.contextual:
            raise ConfigError(f"method {self.name!r} has one covariance for all states: contextual must be false")
        if self.check is not None:
            self.check(values)
        return self.settings(method=self.name, **values)

    def algorithm(self, config: Config, *, obs_size: int, head: Head) -> Any:
        """Make the algorithm for a configuration.

        Args:
            config: The settings.
            obs_size: The length of an observation.
            head: The policy head for the task's action space.

        Returns:
            The result of `make`: a `trpl.algorithms.base.Algorithm`.
        """
        make = self.make
        if isinstance(make, str):
            module, name = make.split(":")
            make = getattr(importlib.import_module(module), name)
        options = {**self.options, **({} if self.layer is None else {"layer": self.layer})}
        return make(config, obs_size=obs_size, head=head, **options)
