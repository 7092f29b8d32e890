"""The registry of methods: this package's own, those of installed plugins, and those that users register.

Modules beside this one register their methods on import and are discovered by location. Other packages name a module in
the entry-point group `trpl.methods`. Without a package, `--plugin FILE.py` or `--plugin MODULE` (or TRPL_PLUGINS in the
environment, separated by commas) imports any code that registers methods.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import importlib.metadata
import importlib.util
import os
import pkgutil
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from trpl.errors import ConfigError
from trpl.messages import nearest
from trpl.methods.method import LayerSpec, Method
from trpl.settings import Config
from trpl.settings.fields import plain_type
from trpl.settings.foreign import suggestion

GROUP, VARIABLE = "trpl.methods", "TRPL_PLUGINS"
NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,49}")
_methods: dict[str, Method] = {}
_plugins: list[str] = []


def register(method: Method) -> Method:
    """Make a method available by name: to the command line, sweeps, tuning, reports and figures.

    Args:
        method: The method.

    Returns:
        The method itself.

    Raises:
        ValueError: The name is malformed or taken, or a setting has another type in another method.
    """
    if not NAME.fullmatch(method.name):
        raise ValueError(f"a method's name consists of lower-case letters, digits, - and _; not {method.name!r}")
    if method.name in _methods and _methods[method.name] != method:
        raise ValueError(f"there already is a method {method.name!r}")
    for name in method.settings.names():
        found = _declaration(name)
        if found is not None and _kind(found[1], name) != _kind(method.settings, name):
            raise ValueError(f"setting {name!r} of method {method.name!r} has another type in {found[0]!r}")
    _methods[method.name] = method
    return method


def _declaration(name: str) -> tuple[str, type[Config]] | None:
    return next(((m.name, m.settings) for m in _methods.values() if name in m.settings.names()), None)


def _kind(owner: type[Config], name: str) -> Any:
    return plain_type(owner.field(name), owner)


def methods() -> tuple[Method, ...]:
    """List all methods.

    Returns:
        The methods, those of the paper's Table 1 first and in its order.
    """
    _load()
    return tuple(sorted(_methods.values(), key=lambda m: (m.row is None, m.row or 0, m.name)))


def names() -> tuple[str, ...]:
    """List the names of all methods.

    Returns:
        The names, in the order of `methods`.
    """
    return tuple(method.name for method in methods())


def find(name: str) -> Method:
    """Look up a method by its name.

    Args:
        name: The name, "kl" for example.

    Returns:
        The method.

    Raises:
        ConfigError: There is no such method.
    """
    _load()
    if name not in _methods:
        raise ConfigError(f"there is no method {name!r}; there are {', '.join(names())}{nearest(name, names())}")
    return _methods[name]


def known(name: str) -> Method | None:
    """Look up a method of a record, which may come from elsewhere.

    Args:
        name: The name.

    Returns:
        The method, or None if it is not registered.
    """
    _load()
    return _methods.get(name)


def settings() -> dict[str, dataclasses.Field]:
    """List the settings of all methods.

    Returns:
        The declarations by name, the common ones first.
    """
    families = [Config, *(method.settings for method in methods())]
    return {field.name: field for family in reversed(families) for field in dataclasses.fields(family)}


def layers() -> dict[str, LayerSpec]:
    """List the trust-region layers, for integrations.

    Returns:
        The layers by the names of the methods that train through them.
    """
    return {method.name: method.layer for method in methods() if method.layer and not method.controls_entropy}


def methods_with(name: str) -> tuple[str, ...]:
    """List the methods that have a setting."""
    return tuple(method.name for method in methods() if name in method.settings.names())


def check_names(given: Iterable[str]) -> None:
    """Refuse settings that no method has, and suggest the nearest name.

    Args:
        given: Names of settings.

    Raises:
        ConfigError: A setting does not exist.
    """
    every = settings()
    for name in given:
        if name not in every:
            raise ConfigError(f"there is no setting {name!r}{suggestion(name, every)}")


def configure(method: str, values: Mapping[str, Any]) -> Config:
    """Make a configuration from settings by name.

    Args:
        method: The name of a method.
        values: Settings by name; a None for a setting that the method lacks is ignored.

    Returns:
        The configuration.

    Raises:
        ConfigError: There is no such method or setting, or a value is out of range.
    """
    found = find(method)
    own = found.settings.names()
    check_names(values)
    for name in values:
        if name not in own and values[name] is not None:
            raise ConfigError(f"{name} does not apply to method {method!r}, only to {', '.join(methods_with(name))}")
    return found.configure({name: value for name, value in values.items() if name in own and name != "method"})


def config_from_json(values: Any) -> Config:
    """Read the output of `Config.to_json`, also of earlier versions.

    Args:
        values: The content of a `config.json`, or its settings.

    Returns:
        The configuration.

    Raises:
        ConfigError: A setting does not exist, or its value is invalid.
    """
    if not isinstance(values, Mapping):
        raise ConfigError(f"expected settings by name, not {values!r}")
    given = {name: tuple(v) if isinstance(v, list) else v for name, v in values.items()}
    return configure(str(given.get("method", "kl")), given)


def load_plugin(word: str) -> None:
    """Import a module or a .py file that registers methods.

    Args:
        word: The module's name, or the file's path.

    Raises:
        ConfigError: The import fails.
    """
    is_file = word.endswith(".py")
    word = str(Path(word).resolve()) if is_file else word  # one name for one file, however it is written
    if word in _plugins:
        return
    try:
        if is_file:
            spec = importlib.util.spec_from_file_location(Path(word).stem, word)
            if spec is None or spec.loader is None:
                raise ImportError(f"{word} is not a Python file")
            module = importlib.util.module_from_spec(spec)
            sys.modules[spec.name] = module
            spec.loader.exec_module(module)
        else:
            importlib.import_module(word)
    except (Exception, SystemExit) as error:
        kind = "" if isinstance(error, ImportError | OSError) else f"{type(error).__name__}: "  # of its own code
        raise ConfigError(f"plugin {word!r} cannot be imported: {kind}{error}") from error
    _plugins.append(word)


def plugins() -> tuple[str, ...]:
    """List the plugins that were loaded by name, to load them in child processes too.

    Returns:
        Their module names and file paths.
    """
    return tuple(_plugins)


@functools.cache
def _load() -> None:
    """Import the modules beside this one, the installed entry points and the plugins named in the environment."""
    for module in pkgutil.iter_modules([str(Path(__file__).parent)]):
        importlib.import_module(f"trpl.methods.{module.name}")
    for entry in importlib.metadata.entry_points(group=GROUP):
        entry.load()
    for word in filter(None, os.environ.get(VARIABLE, "").split(",")):
        load_plugin(word)
