"""Command-line parsing: one option per setting, suggestions for unknown ones, and options that commands share."""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from trpl.errors import UsageError
from trpl.messages import nearest

DEFAULTS = "Defaults are in brackets; presets set some of them otherwise: `trpl presets METHOD ENV` lists all."
ALIASES = {"total_steps": ("--steps",), "warm_start": ("--from",)}


class Parser(argparse.ArgumentParser):
    """argparse that raises instead of exiting, and suggests the nearest option for an unknown one."""

    def __init__(self, name: str, description: str):
        super().__init__(prog=f"trpl {name}", description=description, allow_abbrev=False)
        self._settings: list[str] = []

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} (see {self.prog} --help)")

    def format_help(self) -> str:
        """Format the help with a short first line: a list of all settings would fill the screen.

        Returns:
            The text.
        """
        words = [(str(action.metavar or action.dest), action.nargs) for action in self._get_positional_actions()]
        shapes = {"?": "[{}]", "+": "{} ...", "*": "[{} ...]"}
        self.usage = " ".join([self.prog, *(shapes.get(str(n), "{}").format(word) for word, n in words), "[options]"])
        return super().format_help()

    def parse(self, argv: list[str]) -> argparse.Namespace:
        """Parse the arguments of the command.

        Args:
            argv: The arguments.

        Returns:
            The parsed arguments.

        Raises:
            UsageError: An argument is unknown, missing, empty, or invalid.
        """
        self._refuse_empty(argv)
        args, unknown = self.parse_known_args([_dashes(word) for word in argv])
        if unknown:
            name = unknown[0].split("=")[0]
            raise UsageError(f"unrecognised argument {name!r}{self._suggestion(name)} (see {self.prog} --help)")
        return args

    def _refuse_empty(self, argv: list[str]) -> None:
        """Refuse an empty argument, as from an unset variable: an empty folder would be the current one.

        Settings may be empty text (`--source=`), as sweeps write them for their runs.
        """
        for i, word in enumerate(argv):
            name = word.removeprefix("--").removesuffix("=").replace("-", "_")
            if not word or (word == f"--{name.replace('_', '-')}=" and name not in self._settings):
                before = " ".join([self.prog, *argv[:i], word]).rstrip()
                raise UsageError(f"the argument after `{before}` is empty: is a variable unset?")

    def _suggestion(self, name: str) -> str:
        """Suggest an option for an unknown one."""
        if not name.startswith("-"):
            return ""
        options = [option for action in self._actions for option in action.option_strings]
        if self._settings:
            from trpl.settings.foreign import suggestion

            return suggestion(name, [option.strip("-").replace("-", "_") for option in options], as_flags=True)
        return nearest(name, options)

    def add_by(self) -> None:
        """Add the option of commands that draw runs: what distinguishes variants."""
        words = "a setting that distinguishes variants of a method; may be given several times"
        self.add_argument("--by", action="append", default=[], metavar="SETTING", help=words)

    def add_other_versions(self) -> None:
        """Add the option that allows resuming with other library versions."""
        self.add_argument("--other-versions", action="store_true", help="resume although library versions differ")

    def add_run_options(self) -> None:
        """Add the options of commands that train: what is shown, and where it is recorded too."""
        self.add_argument("--quiet", action="store_true", help="no progress")
        self.add_argument("--track", choices=("wandb", "mlflow"), help="record metrics there too, offline by default")

    def settings(self, args: argparse.Namespace) -> dict[str, Any]:
        """Select the settings among the arguments.

        Args:
            args: The output of `parse`.

        Returns:
            The given settings by name.
        """
        return {name: value for name, value in vars(args).items() if name in self._settings}

    def add_settings(self, *, skip: Sequence[str] = (), as_released: bool = False) -> None:
        """Add an option for every setting of any method, grouped by the methods that have it and by topic.

        Args:
            skip: Settings that the command takes in another way.
            as_released: Whether to add the option for all switches of the authors' release too.
        """
        from trpl.methods import registry
        from trpl.presets import AS_RELEASED
        from trpl.settings.fields import plain_type

        if as_released:
            words = "every --released-... switch of the method: compute as the authors' release does"
            self.add_argument("--as-released", action="store_true", default=argparse.SUPPRESS, help=words)
            self._settings.append(AS_RELEASED)
        groups: dict[str, Any] = {}
        for name, field in registry.settings().items():
            if name in skip:
                continue
            having = registry.methods_with(name)
            title = field.metadata["topic"] or f"settings of {', '.join(having)}"
            if title not in groups:
                groups[title] = self.add_argument_group(title, None if groups else DEFAULTS)
            owner = registry.find(having[0]).settings
            _add_setting(groups[title], name, field, plain_type(field, owner))
            self._settings.append(name)


def _add_setting(group: Any, name: str, field: dataclasses.Field, kind: type) -> None:
    flags = [f"--{name.replace('_', '-')}", *ALIASES.get(name, ())]
    choices, optional = field.metadata["choices"], field.metadata["optional"]
    text = field.metadata["help"] + (f": {', '.join(choices)}" if choices else "") + _default(field)
    common: dict[str, Any] = {"dest": name, "default": argparse.SUPPRESS, "help": text.replace("%", "%%")}
    if kind is bool:
        group.add_argument(*flags, action=argparse.BooleanOptionalAction, **common)
    elif kind in (int, float):
        group.add_argument(*flags, type=number(kind, optional=optional), metavar="N", **common)
    elif kind is dict:
        group.add_argument(*flags, action=Pairs, nargs="+", metavar="KEY=VALUE", **common)
    elif kind is tuple:
        group.add_argument(*flags, type=number(int, optional=False), nargs="+", metavar="N", **common)
    else:
        group.add_argument(*flags, metavar="NAME", **common)


class Pairs(argparse.Action):
    """Parses KEY=VALUE arguments, given at once or one by one; a value is JSON if it parses, else text."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        found = dict(getattr(namespace, self.dest, {}))
        for word in values:
            key, equals, text = word.partition("=")
            if not equals or not key:
                raise argparse.ArgumentError(self, f"expected KEY=VALUE, not {word!r}")
            try:
                found[key] = json.loads(text)
            except ValueError:
                found[key] = text
        setattr(namespace, self.dest, found)


def _default(field: dataclasses.Field) -> str:
    """Write a setting's default in brackets, if it has one."""
    from trpl.settings.fields import shown

    return "" if field.default in (None, "", dataclasses.MISSING) else f" ({shown(field.default)})"


def _dashes(word: str) -> str:
    """Write --mean_bound as --mean-bound."""
    name, equals, value = word.partition("=")
    return name.replace("_", "-") + equals + value if word.startswith("--") else word


def number(kind: type, *, optional: bool) -> Callable[[str], Any]:
    """Make a parser of numbers that accepts 1e6 and 1_000_000 as whole numbers.

    Args:
        kind: `int` or `float`.
        optional: Whether `none` is permitted, which switches the setting off.

    Returns:
        A function from text to a number or None; it raises `ValueError` for anything else.
    """

    def read(text: str) -> Any:
        if optional and text.lower() == "none":
            return None
        value = float(text)
        if kind is int and not value.is_integer():
            raise ValueError(text)
        return kind(value)

    read.__name__ = "whole number" if kind is int else "number"
    return read


def positive_int(text: str) -> int:
    """Parse a whole number above 0.

    Args:
        text: The argument.

    Returns:
        The number.

    Raises:
        argparse.ArgumentTypeError: The text is anything else.
    """
    try:
        value = number(int, optional=False)(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number, at least 1, not {text}")
    return value


def load_plugins(argv: list[str]) -> list[str]:
    """Import the plugins that `--plugin` names, for any command.

    Args:
        argv: The arguments of a command.

    Returns:
        The other arguments.

    Raises:
        UsageError: `--plugin` has no value.
    """
    reader = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    reader.add_argument("--plugin", action="append", default=[])
    try:
        found, others = reader.parse_known_args(argv)
    except argparse.ArgumentError as error:
        raise UsageError(f"{error}: the name of a module, or of a .py file") from error
    if found.plugin:
        from trpl.methods.registry import load_plugin

        for word in found.plugin:
            load_plugin(word)
    return others
