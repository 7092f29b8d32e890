"""The registry: names and settings that cannot meet, and how many files an addition touches."""

import ast
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

import trpl
from trpl.errors import ConfigError
from trpl.methods import find, methods, names, register, registry
from trpl.methods.registry import settings
from trpl.presets import preset
from trpl.presets.tables import EPISODIC, HUMANOID, PAPER_REACHER, REACHER
from trpl.settings import Config, setting

SOURCE = Path(trpl.__file__).parent


def test_a_name_is_taken_once_and_is_a_name():
    with pytest.raises(ValueError, match="there already is a method 'kl'"):
        register(replace(find("kl"), label="another"))
    assert register(find("kl")) is find("kl")
    with pytest.raises(ValueError, match="lower-case letters"):
        register(replace(find("kl"), name="../kl"))


def test_one_setting_has_one_type():
    @dataclass(frozen=True, kw_only=True)
    class Clash(Config):
        bound: int = setting(1, "another bound")

    with pytest.raises(ValueError, match="setting 'bound' of method 'clash' has another type in"):
        register(trpl.Method(name="clash", settings=Clash, make="nowhere:make"))
    assert "clash" not in names()


def test_what_a_method_says_of_its_settings_counts(monkeypatch):
    @dataclass(frozen=True, kw_only=True)
    class Shortsighted(Config):
        discount: float = setting(0.5, "γ", least=0.0, most=1.0)

    monkeypatch.setattr(registry, "_methods", dict(registry._methods))
    register(trpl.Method(name="shortsighted", settings=Shortsighted, make="nowhere:make", contextual=False))
    assert preset("shortsighted", "Hopper-v4").discount == 0.5
    with pytest.raises(ConfigError, match="'shortsighted' has one covariance for all states"):
        preset("shortsighted", "Hopper-v4", contextual=True)


def test_every_method_says_what_everything_else_reads():
    for method in (m for m in methods() if str(m.make).startswith("trpl.")):
        assert method.label
        assert method.style
        assert method.source
        assert set(method.settings.names()) <= set(settings())
    rows = [method.row for method in methods() if method.row is not None]
    assert rows == list(range(9))


def files_naming(word: str) -> set[str]:
    """Source files with a string that is `word`, docstrings apart."""
    found = set()
    for path in SOURCE.rglob("*.py"):
        tree = ast.parse(path.read_text())
        strings = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and type(node.value) is str}
        if word in strings:
            found.add(str(path.relative_to(SOURCE)))
    return found


@pytest.mark.parametrize(
    ("method", "files"),
    [
        ("kl-joint", {"methods/trust_region.py"}),
        ("frobenius-e", set()),
        ("ppo-m", {"methods/clipped.py"}),
        ("papi-gradient", {"methods/papi.py"}),
        ("trpo", {"methods/trpo.py"}),
    ],
)
def test_a_method_is_named_in_one_file(method, files):
    """With the file of its update that makes two for an algorithm."""
    assert files_naming(method) == files


@pytest.mark.parametrize("task", [HUMANOID, REACHER, PAPER_REACHER, EPISODIC])
def test_a_task_is_named_where_it_is_registered_and_in_its_table(task):
    assert files_naming(task) == {"presets/tables.py", "rollouts/tasks.py"}


@pytest.mark.parametrize("layer", ["WassersteinProjection", "JointKLProjection"])
def test_a_region_is_one_line_for_the_trainer(layer):
    """Above the layers a region is named in one file: with its maths and the two frameworks' classes, four."""
    files = [path.relative_to(SOURCE) for path in SOURCE.rglob("*.py") if layer in path.read_text()]
    below = ("torch", "jax", "projections", "layers", "families", "compat", "__init__.py")  # compat gives old names
    assert {str(file) for file in files if file.parts[0] not in below} == {"methods/trust_region.py"}
