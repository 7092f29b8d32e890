"""Reading a command's arguments: one option per setting, and an answer with the nearest right one."""

import argparse
import dataclasses
import difflib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn


class UsageError(Exception):
    """Arguments that do not fit the command."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The nearest of the known names, or all of them."""
    found = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"; did you mean {found[0]!r}?" if found else f"; there are {', '.join(known)}"


class Parser(argparse.ArgumentParser):
    """argparse that raises instead of exiting, and answers an unknown option with the nearest right one."""

    def __init__(self, name: str, description: str):
        super().__init__(prog=f"trpl {name}", description=description, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} (see {self.prog} --help)")

    def parse(self, argv: list[str]) -> argparse.Namespace:
        argv = [_dashes(word) for word in argv]
        args, unknown = self.parse_known_args(argv)
        if unknown:
            known = [option for action in self._actions for option in action.option_strings]
            name = unknown[0].split("=")[0]
            hint = did_you_mean(name, known) if name.startswith("-") else ""
            raise UsageError(
                f"unrecognised argument {name!r}{hint if hint.count(',') < 3 else ''} (see {self.prog} --help)"
            )
        return args


def _dashes(word: str) -> str:
    """--mean_bound is --mean-bound."""
    name, equals, value = word.partition("=")
    return name.replace("_", "-") + equals + value if word.startswith("--") else word


def add_settings(parser: argparse.ArgumentParser, *, skip: Sequence[str], of: Any) -> None:
    """An option for every setting of the configuration, under its own name; absent ones keep the preset's value."""
    from trpl.experiments.config import plain_type

    group = parser.add_argument_group("settings (the preset of method and task gives the rest)")
    for field in dataclasses.fields(of):
        if field.name in skip:
            continue
        flag, kind, text = f"--{field.name.replace('_', '-')}", plain_type(field.name), field.metadata["help"]
        names = [flag, "--steps"] if field.name == "total_steps" else [flag]
        common: dict[str, Any] = {"dest": field.name, "default": argparse.SUPPRESS, "help": text}
        optional = field.metadata.get("optional", False)
        if kind is bool:
            group.add_argument(*names, action=argparse.BooleanOptionalAction, **common)
        elif kind in (int, float):
            group.add_argument(*names, type=number(kind, optional=optional), metavar="N", **common)
        elif kind is str:
            group.add_argument(*names, metavar="NAME", **common)
        else:
            group.add_argument(*names, type=number(int, optional=False), nargs="+", metavar="N", **common)


def number(kind: type, *, optional: bool) -> Callable[[str], Any]:
    """A reader of numbers that takes 1e6 and 1_000_000 for whole ones, and `none` where a setting can be off."""

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
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, not {value}")
    return value
