"""The oldest NumPy that is declared, tried: the short form of `make versions`, which tries everything."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from installing import ROOT

sys.path.insert(0, str(ROOT / "stress"))
import versions

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
    command = [python, "-c", PROGRAM, str(packages), str(ROOT / "src"), str(out)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    with np.load(out) as arrays:
        return [arrays[name] for name in arrays]


@pytest.mark.skipif(sys.version_info >= (3, 13), reason="NumPy 1.26 has no build for this Python")
def test_the_oldest_numpy_gives_the_same_values(tmp_path):
    bounds = {name: version for name, version in versions.lower_bounds().items() if name in NEEDED}
    words = [f"{name}=={version}" for name, version in bounds.items()]
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(tmp_path / "oldest")]
    done = subprocess.run([*pip, *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (old_version, *old), (version, *new) = (
        run(sys.executable, packages, tmp_path / f"{packages.name}.npz")
        for packages in (tmp_path / "oldest", tmp_path / "here")
    )
    assert tuple(old_version) == (1, 26)
    assert tuple(version) >= (2, 0)
    assert len(old) == len(new) > 30
    for one, other in zip(old, new, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-11, atol=1e-13)


NEEDED = ("numpy", "array-api-compat", "safetensors")


def test_what_is_declared_is_what_is_tried():
    sets = versions.all_sets()
    assert [sets["oldest"].python, sets["newest"].python] == ["3.11", "3.13"]
    oldest = sets["oldest"].constraints
    assert (oldest["numpy"], oldest["torch"], oldest["jax"]) == ("1.26", "2.6", "0.5")
    assert not sets["newest"].constraints
