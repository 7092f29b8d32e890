"""Settings as fields of frozen dataclasses: type, default, help, range and search range in one line."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import operator
import types
import typing
from collections.abc import Mapping
from typing import Any

import numpy as np

from trpl.errors import ConfigError
from trpl.messages import nearest
from trpl.settings.search import Range

LARGEST_INT = 10**12
LIMITS = {  # rule of a setting → what its value must satisfy, and how messages say it
    "above": (operator.gt, "above"),
    "least": (operator.ge, "at least"),
    "below": (operator.lt, "below"),
    "most": (operator.le, "at most"),
}
WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a name", dict: "values by name"}


def setting(
    default: Any,
    help: str,
    *,
    above: float | None = None,
    least: float | None = None,
    below: float | None = None,
    most: float | None = None,
    choices: tuple[str, ...] = (),
    optional: bool = False,
    search: Range | None = None,
    hash: bool | None = None,
    topic: str = "",
) -> Any:
    """Declare a setting: a field of a frozen dataclass with its help text and rules.

    Args:
        default: Its value if neither a preset nor the caller gives one.
        help: Its meaning, for the command line and for messages.
        above: The value must be larger than this.
        least: The value must be at least this.
        below: The value must be smaller than this.
        most: The value must be at most this.
        choices: The permitted values.
        optional: Whether None is permitted, which switches the setting off.
        search: The range that `trpl tune` searches; settings without one are not tuned.
        hash: See `dataclasses.field`; False for unhashable values.
        topic: Its heading in `--help`, if the methods that have it are not heading enough.

    Returns:
        The field.
    """
    limits = {"above": above, "least": least, "below": below, "most": most}
    metadata = {
        "help": help,
        "limits": {rule: limit for rule, limit in limits.items() if limit is not None},
        "choices": choices,
        "optional": optional,
        "search": search,
        "topic": topic,
    }
    made: dict[str, Any] = {"default_factory": dict} if default == {} else {"default": default}
    return dataclasses.field(metadata=metadata, hash=hash, **made)


_type_hints = functools.cache(typing.get_type_hints)  # annotations are strings here, slow to evaluate per setting


def plain_type(field: dataclasses.Field, owner: type) -> type:
    """Return the type of a setting's value, X for `X | None`.

    Args:
        field: The declaration of the setting.
        owner: The dataclass that declares it.

    Returns:
        The type.
    """
    hint = _type_hints(owner)[field.name]
    members = [t for t in typing.get_args(hint) if t is not types.NoneType]
    return members[0] if isinstance(hint, types.UnionType) else typing.get_origin(hint) or hint


def checked(field: dataclasses.Field, owner: type, value: Any, *, method: str) -> Any:
    """Convert a setting's value to its declared type and check its range."""
    name, rules = field.name, field.metadata
    if value is None:
        if not rules["optional"]:
            raise ConfigError(f"method {method!r} needs {name} ({rules['help']})")
        return None
    value = _typed(name, value, plain_type(field, owner))
    if rules["choices"] and value not in rules["choices"]:
        known = rules["choices"]
        raise ConfigError(f"{name} {value!r} is not one of {', '.join(known)}{nearest(value, known)}")
    for number in value if isinstance(value, tuple) else (value,):
        if type(number) in (int, float):
            _check_range(name, number, rules["limits"])
    return value


def _typed(name: str, value: Any, wanted: type) -> Any:
    value = _plain(value)
    for number in value if isinstance(value, tuple | list) else (value,):
        if type(number) is int and abs(number) > LARGEST_INT:
            raise ConfigError(f"{name} must be at most {LARGEST_INT:g}")
    if wanted is float and type(value) is int:
        return float(value)
    if wanted is int and type(value) is float and value.is_integer():  # 1e6
        return _typed(name, int(value), int)
    if wanted is tuple:
        if isinstance(value, tuple | list) and value and all(type(v) is int for v in value):
            return tuple(value)
        raise ConfigError(f"{name} must be one or more whole numbers, not {value!r}")
    if wanted is dict and isinstance(value, Mapping):
        _check_recordable(name, value)
        return dict(value)
    if type(value) is not wanted:
        raise ConfigError(f"{name} must be {WORDS[wanted]}, not {value!r}")
    return value


def _plain(value: Any) -> Any:
    """Convert numbers of NumPy, as from a loop over `np.arange(3)`, to those of Python, which JSON can hold."""
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    if isinstance(value, Mapping):
        return {name: _plain(member) for name, member in value.items()}
    return type(value)(map(_plain, value)) if type(value) in (tuple, list) else value


def _check_recordable(name: str, values: Mapping[Any, Any]) -> None:
    for key, value in values.items():
        try:
            json.dumps(value)
        except (TypeError, ValueError) as error:
            words = "must be something that JSON can hold (a number, text, a list)"
            raise ConfigError(f"{key!r} in {name} {words}, not {value!r}") from error
        if type(key) is not str:
            raise ConfigError(f"{name} must be values by name, and {key!r} is not text")


def _check_range(name: str, value: float, limits: Mapping[str, float]) -> None:
    if not math.isfinite(value):
        raise ConfigError(f"{name} must be a finite number, not {value}")
    for rule, limit in limits.items():
        holds, words = LIMITS[rule]
        if not holds(value, limit):
            raise ConfigError(f"{name} must be {words} {limit:g}, not {value:g}")


def shown(value: Any, *, between: str = " ") -> str:
    """Format a setting's value for people.

    Args:
        value: The value.
        between: What separates several numbers.

    Returns:
        A word or a few; "-" for None.
    """
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return between.join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else str(value)
