"""The oldest NumPy and every Python that is declared, in short; `make versions` tries everything."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from installing import ROOT

sys.path.insert(0, str(ROOT / "stress"))
import versions

NEEDED = ("numpy", "array-api-compat", "safetensors")
PROGRAM = """
import sys
sys.path[:0] = sys.argv[1:3]
import numpy as np
from trpl import DiagGaussian, FullGaussian, entropy, frobenius_parts, kl_parts, log_prob, wasserstein_parts
from trpl.layers import layer
from trpl.projections.frobenius import Frobenius
from trpl.projections.kl.region import KL
from trpl.projections.wasserstein import Wasserstein

assert not {"torch", "jax"} & set(sys.modules)
rng = np.random.default_rng(0)
diag = [DiagGaussian(rng.normal(size=(8, 3)), rng.uniform(0.3, 1.3, size=(8, 3))) for _ in range(2)]
low = [np.tril(0.2 * rng.normal(size=(8, 3, 3)), -1) for _ in diag]
full = [FullGaussian(p.mean, lower + p.std[..., None] * np.eye(3)) for p, lower in zip(diag, low)]
found = [np.array([int(part) for part in np.__version__.split(".")[:2]])]
for p, q in (diag, full):
    for region in (KL(), Wasserstein(), Wasserstein("exact"), Frobenius(), Frobenius(True)):
        asked = layer.Bounds(0.1, 0.01), layer.Target("minimum", 1.0)
        found += layer.project(region, p, q, *asked, entropy_first=False, check=True)
    found += layer.project_jointly(p, q, 0.2, layer.FREE, check=True)
    found += [entropy(p), log_prob(p, q.mean), *kl_parts(p, q), *wasserstein_parts(p, q), *frobenius_parts(p, q)]
np.savez(sys.argv[3], *found)
"""


def run(python: str, packages: Path, out: Path) -> list[np.ndarray]:
    command = [python, "-W", "error", "-c", PROGRAM, str(packages), str(ROOT / "src"), str(out)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    with np.load(out) as arrays:
        return [arrays[name] for name in arrays]


def install(python: str, what: list[str], folder: Path) -> None:
    command = [python, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder), *what]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def compare_with_here(found: list[np.ndarray], folder: Path) -> None:
    """What another environment found, and what this one does."""
    version, *here = run(sys.executable, folder / "nothing", folder / "here.npz")
    assert tuple(version) >= (2, 0)
    assert len(found) == len(here) > 30
    for one, other in zip(found, here, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-11, atol=1e-13)


@pytest.mark.skipif(sys.version_info >= (3, 13), reason="NumPy 1.26 has no build for this Python")
def test_the_oldest_numpy_gives_the_same_values(tmp_path):
    bounds = {name: version for name, version in versions.lower_bounds().items() if name in NEEDED}
    install(sys.executable, [f"{name}=={version}" for name, version in bounds.items()], tmp_path / "oldest")
    version, *old = run(sys.executable, tmp_path / "oldest", tmp_path / "oldest.npz")
    assert tuple(version) == (1, 26)
    compare_with_here(old, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("version", versions.supported_pythons())
def test_every_python_gives_the_same_values(version, tmp_path):
    python = versions.find_python(version)
    if python is None:
        pytest.skip(f"no Python {version} here")
    if f"{sys.version_info[0]}.{sys.version_info[1]}" == version:
        pytest.skip("all other tests run with this Python")
    install(python, list(NEEDED), tmp_path / "newest")
    _, *found = run(python, tmp_path / "newest", tmp_path / "newest.npz")
    compare_with_here(found, tmp_path)


def test_what_is_declared_is_what_is_tried():
    sets = versions.all_sets()
    assert [sets["oldest"].python, sets["newest"].python] == ["3.11", "3.13"]
    oldest = sets["oldest"].constraints
    assert (oldest["numpy"], oldest["torch"], oldest["jax"]) == ("1.26", "2.6", "0.5")
    assert not sets["newest"].constraints
    assert [one.python for one in sets.values()] == versions.supported_pythons()


def test_an_interpreter_that_does_not_run_is_passed_over(tmp_path, monkeypatch):
    """As pyenv's stand-ins, which are first in the path and fail unless that version is switched on."""
    for folder, program in (("first", "exit 127"), ("second", "echo 3.98"), ("third", "echo 3.99")):
        (tmp_path / folder).mkdir()
        file = tmp_path / folder / "python3.99"
        file.write_text(f"#!/bin/sh\n{program}\n")
        file.chmod(0o755)
    monkeypatch.setenv("PATH", ":".join(str(tmp_path / folder) for folder in ("first", "absent", "second", "third")))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    assert versions.find_python("3.99") == str(tmp_path / "third" / "python3.99")
    pyenv = tmp_path / "versions" / "3.97.2" / "bin"
    pyenv.mkdir(parents=True)
    (pyenv / "python").write_text("#!/bin/sh\necho 3.97\n")
    (pyenv / "python").chmod(0o755)
    assert versions.find_python("3.97") == str(pyenv / "python")


def test_a_python_that_is_not_there_is_said_and_does_not_fail_the_others(tmp_path):
    wanted = versions.Versions("newest", "3.99", {})
    absent = versions.attempt(wanted, tmp_path / "wheel", tmp_path / "place", [], (), workers=1)
    assert absent.words == "not tried: no Python 3.99 was found"
    assert not (tmp_path / "place").exists()
    passed = versions.Outcome("oldest", "3.11", {}, passed=1, failed=0, skipped=0, seconds=1.0, words="")
    failed = passed._replace(words="the tests fail")
    assert versions.exit_code([passed, absent]) == 0
    assert versions.exit_code([passed, failed]) == 1
    assert versions.exit_code([absent]) == 1
