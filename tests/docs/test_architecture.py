"""The map of the code says what is there: rooms and their order, files, and what a new thing touches."""

import inspect
import re
import tomllib
from pathlib import Path

from blocks import ROOT

from trpl.families import family_of
from trpl.gaussians import DiagGaussian, FullGaussian
from trpl.methods import methods

SOURCE = ROOT / "src" / "trpl"
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")


def test_rooms_stand_in_the_order_of_the_import_contract():
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"][
        "contracts"
    ]
    (contract,) = (found for found in contracts if found["type"] == "layers")
    wanted = [set(re.split(r" [:|] ", line)) for line in contract["layers"]]
    diagram = re.search(r"```text\n(.*?)```", PAGE, re.DOTALL)[1]
    lines = [re.match(r"  (\w+(?: [·|] \w+)*)  +\S", line) for line in diagram.splitlines()]
    assert [set(re.split(r" [·|] ", line[1])) for line in lines if line] == wanted


def test_every_room_is_on_the_map():
    rooms = {path.stem for path in SOURCE.iterdir() if path.name not in ("__init__.py", "__pycache__", "py.typed")}
    assert not {room for room in rooms if not re.search(rf"^  .*\b{room}\b", PAGE, re.MULTILINE)}


def test_every_file_it_names_exists():
    named = re.findall(r"`((?:\w+/)*\w+\.py)\b[^`]*`", PAGE) + re.findall(r"`((?:\w+/)+)`", PAGE)
    assert len(named) > 25
    for name in named:
        inside = name.split("/")[0] in ("tests", "docs", "stress", "benchmarks", "examples", "results")
        place = ROOT if inside else SOURCE
        found = list(place.rglob(name)) if "/" not in name else [place / name]
        assert any(path.exists() for path in found), f"docs/architecture.md names {name}"


def test_a_method_is_one_file_in_methods():
    """Where the settings of each method are declared is where it is registered, and nowhere else names it so."""
    for method in methods():
        home = Path(inspect.getfile(method.settings))
        assert home.parent.name in ("methods", "settings"), method.name
    registering = {
        path.name for path in SOURCE.rglob("*.py") if re.search(r"^register\(", path.read_text(), re.MULTILINE)
    }
    assert registering <= {path.name for folder in ("methods", "families") for path in (SOURCE / folder).glob("*.py")}


def test_a_family_is_one_file_in_families():
    import numpy as np

    for policy in (DiagGaussian(np.zeros(2), np.ones(2)), FullGaussian(np.zeros(2), np.eye(2))):
        assert Path(inspect.getfile(type(family_of(policy)))).parent == SOURCE / "families"
