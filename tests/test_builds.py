"""The wheel and the source archive: what is in them, that they are reproducible, and that each extra stands alone.

An extra stands alone when its program runs with the wheel and, of what is installed here, only the distributions that
the extra brings by the declared requirements of each; everything else is hidden from the import system. That leaves out
the download. `stress/builds.py` installs every extra for real, each into an environment of its own.
"""

import hashlib
import shutil
import subprocess
import sys
import zipfile
from email.parser import Parser

import pytest

import trpl
from installing import (
    EXTRAS,
    ROOT,
    UNUSUAL,
    build,
    closure,
    extras,
    install,
    program,
    run_with,
    sample_run,
    snapshot,
    with_extra,
)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    return snapshot(tmp_path_factory.mktemp("tree") / "trpl")


@pytest.fixture(scope="module")
def wheel(tree, tmp_path_factory):
    (path,) = build(tmp_path_factory.mktemp("wheel"), "--wheel", source=tree)
    return path


@pytest.fixture(scope="module")
def site(wheel, tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    install(wheel, folder)
    return folder


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    return sample_run(tmp_path_factory.mktemp("working"))


def test_the_wheel_holds_the_package_and_nothing_else(wheel, tree):
    """Every file of src/trpl, with presets, assets and the marker of types; a path file; the licence; no tests."""
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        info = f"trpl-{trpl.__version__}.dist-info"
        words = Parser().parsestr(archive.read(f"{info}/METADATA").decode())
        licence = archive.read(f"{info}/licenses/LICENSE").decode()
        commands = archive.read(f"{info}/entry_points.txt").decode()
    source = tree / "src"
    files = {p.relative_to(source).as_posix() for p in (source / "trpl").rglob("*") if p.is_file()}
    files = {name for name in files if "__pycache__" not in name}
    assert {name for name in names if not name.startswith(info)} == {*files, "zz_trpl_rl_zoo3.pth"}
    assert {
        "trpl/py.typed",
        "trpl/presets/tables.py",
        "trpl/runs/trainer.py",
        "trpl/rollouts/assets/reacher5.xml",
    } <= files
    assert words["Version"] == trpl.__version__
    assert (words["License-Expression"], licence) == ("MIT", (ROOT / "LICENSE").read_text())
    assert "trpl = trpl.cli:main" in commands


def test_built_twice_it_is_the_same_to_the_byte(wheel, tree, tmp_path):
    """Twice from the tree, and once from the unpacked source archive: so that one is complete."""
    (again,) = build(tmp_path / "again", "--wheel", source=tree)
    (archive,) = build(tmp_path / "source", "--sdist", source=tree)
    (other,) = build(tmp_path / "other", "--sdist", source=tree)
    assert archive.read_bytes() == other.read_bytes()
    shutil.unpack_archive(archive, tmp_path / "unpacked")
    (unpacked,) = (tmp_path / "unpacked").iterdir()
    assert (unpacked / "tests" / "test_builds.py").exists()
    (from_source,) = build(tmp_path / "from_source", "--wheel", source=unpacked)
    digests = {hashlib.sha256(path.read_bytes()).hexdigest() for path in (wheel, again, from_source)}
    assert len(digests) == 1


def test_alone_in_a_clean_environment(wheel, run_folder, tmp_path):
    """`pip install trpl` for real: the dependencies come, the program of the plain package runs, and `trpl` answers."""
    bin = tmp_path / "clean" / "bin"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "clean")], check=True)
    pip = [sys.executable, "-m", "pip", "--python", str(bin / "python"), "install", "--quiet"]
    done = subprocess.run([*pip, "-c", str(ROOT / "constraints.txt"), str(wheel)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    variables = {"PATH": str(bin), "HOME": str(tmp_path)}
    code = program("")
    for command in ([str(bin / "python"), "-c", code], [str(bin / "trpl"), "--version"]):
        done = subprocess.run(command, cwd=run_folder, env=variables, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == trpl.__version__


AT_LENGTH = ("torchrl", "trl", "ray", "tune", "mlflow", "wandb")  # their libraries take seconds to import


@pytest.mark.parametrize(
    "extra",
    [pytest.param(extra, marks=[pytest.mark.stress] if extra in AT_LENGTH else []) for extra in EXTRAS],
    ids=lambda extra: extra or "plain",
)
def test_each_extra_imports_alone(extra, site, run_folder):
    done = run_with(with_extra(extra), program(extra), site=site, cwd=run_folder)
    assert done.returncode == 0, done.stderr


def test_what_is_hidden_is_missed(site, run_folder):
    """The blocker works: the program of one extra fails with the other's distributions."""
    for extra, other, missing in (("torch", "jax", "jax"), ("jax", "torch", "torch"), ("", "wandb", "wandb")):
        done = run_with(with_extra(extra), program(other), site=site, cwd=run_folder)
        assert done.returncode != 0
        assert f"No module named '{missing}'" in done.stderr


def test_extras_bring_no_framework_that_is_not_theirs(site):
    """By declared requirements; PyTorch and JAX are never both brought, but for developers."""
    frameworks = {extra: {"torch", "jax"} & closure(with_extra(extra), site) for extra in EXTRAS}
    assert frameworks[""] == frameworks["onnx"] == frameworks["wandb"] == set()
    for extra in ("torch", "sb3", "torchrl", "trl"):
        assert frameworks[extra] == {"torch"}
    for extra in ("jax", "train", "ray", "tune"):
        assert frameworks[extra] == {"jax"}


def test_no_extra_is_forgotten(site):
    assert extras(site) == {*EXTRAS, *UNUSUAL, "dev"} - {""}
