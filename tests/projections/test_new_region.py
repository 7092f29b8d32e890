"""A region, for both frameworks and the trainer, is four source files: maths, a class per framework, a method."""

import shutil
import subprocess
import sys
from pathlib import Path

import trpl
from frameworks import needs_torch

MATHS = '''"""A ball of logarithmic standard deviations: Σ log²(σ/σ_old) within its bound, for diagonal covariances."""

from dataclasses import dataclass

from trpl.implicit.problems import Solved
from trpl.linalg import chosen
from trpl.projections.closed_form import ClosedForm
from trpl.projections.mean import shrinkage
from trpl.projections.regions import VECTOR


@dataclass(frozen=True)
class LogRatio(ClosedForm):
    def cov_distance(self, e, p, q):
        change = e.xp.log(p.std) - e.xp.log(q.std)
        return e.vecdot(change, change)

    def fusible(self, *, full):
        return False

    def residuals(self, *, full):
        return (VECTOR,)

    def solve_cov(self, e, p, q, bound, *, full, whole):
        change = e.xp.log(p) - e.xp.log(q)
        distance = e.vecdot(change, change)
        if not whole and not e.any(distance > bound):
            return None
        moved = q * e.xp.exp(shrinkage(e, distance, bound)[..., None] * change)
        return Solved((chosen(e, (distance > bound)[..., None], moved, p),), (e.xp.broadcast_to(change, moved.shape),))

    def pullback_cov(self, e, saved, cotangent, *, full, old_too):
        (p, q, bound), (projected,), (change,) = saved
        distance = e.vecdot(change, change)
        outside = (distance > bound)[..., None]
        weight = shrinkage(e, distance, bound)[..., None]
        inner = projected * cotangent
        along = e.vecdot(change, inner)
        change_bar = weight * (inner - (along / e.xp.maximum(distance, bound))[..., None] * change)
        p_bar = chosen(e, outside, change_bar / p, cotangent)
        zero = 0.0 * p_bar
        bound_bar = 0.5 * weight[..., 0] * along / bound
        q_bar = chosen(e, outside, (inner - change_bar) / q, zero)
        return p_bar, q_bar, chosen(e, outside[..., 0], bound_bar, zero[..., 0])
'''

FOR_TORCH = '''

from trpl.projections.log_ratio import LogRatio

__all__ += ["LogRatioProjection"]


class LogRatioProjection(_Separate):
    """A ball of logarithmic standard deviations."""

    def __init__(self, mean_bound: Bound, cov_bound: Bound, *, entropy_first: bool = False, check: bool = True) -> None:
        super().__init__(
            LogRatio(), mean_bound=mean_bound, cov_bound=cov_bound, entropy_first=entropy_first, check=check
        )
'''

FOR_JAX = '''

from trpl.projections.log_ratio import LogRatio

__all__ += ["LogRatioProjection"]


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class LogRatioProjection(_ByContent, SeparateLayer):
    """A ball of logarithmic standard deviations."""

    mean_bound: Bound
    cov_bound: Bound
    entropy_first: bool = _static(False)
    check: bool = _static(True)
    __call__ = SeparateLayer.forward

    def trust_region(self) -> Region:
        return LogRatio()
'''

METHOD = '''"""The method that trains through the ball of logarithmic standard deviations."""

from trpl.methods import palette
from trpl.methods.method import LayerSpec
from trpl.methods.trust_region import BOUNDS, Separate, register_region

register_region("log-ratio", "LOG", palette.BLUE, Separate, LayerSpec("LogRatioProjection", BOUNDS), columns={})
'''

USE = """
import sys
import jax, jax.numpy as jnp, numpy as np, torch
import trpl, trpl.jax, trpl.torch

assert trpl.__file__.startswith(sys.argv[1]), trpl.__file__
rng = np.random.default_rng(0)
arrays = [make((4, 3)) for make in (rng.standard_normal, lambda n: rng.uniform(0.3, 2.0, n)) * 2]


def project(layer, mean, std, old_mean, old_std):
    return tuple(layer(trpl.DiagGaussian(mean, std), trpl.DiagGaussian(old_mean, old_std)))


layer = trpl.torch.LogRatioProjection(0.1, 0.2)
inputs = [torch.tensor(x, requires_grad=True) for x in arrays]
assert torch.autograd.gradcheck(lambda *xs: project(layer, *xs), inputs)
moved = project(layer, *inputs)[1].detach().numpy()
np.testing.assert_allclose((np.log(moved / arrays[3]) ** 2).sum(-1).max(), 0.2)

jax.config.update("jax_enable_x64", True)
other = project(trpl.jax.LogRatioProjection(0.1, 0.2), *map(jnp.asarray, arrays))[1]
np.testing.assert_allclose(other, moved, rtol=1e-12)

from trpl.integrations.trust_region import TrustRegion

assert TrustRegion(projection="log-ratio").layer

settings = {"rollout_size": 32, "minibatch_size": 16, "policy_epochs": 1, "value_epochs": 1, "hidden_sizes": (8,)}
run = trpl.train("log-ratio", "Pendulum-v1", out=sys.argv[2], steps=64, progress=False, **settings)
assert len(run.table()["epoch"]) == 2
"""


@needs_torch
def test_a_region_with_its_method_is_four_source_files(tmp_path):
    package = tmp_path / "trpl"
    shutil.copytree(Path(trpl.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    before = {path: path.stat().st_mtime_ns for path in package.rglob("*.py")}
    (package / "projections" / "log_ratio.py").write_text(MATHS)
    (package / "methods" / "log_ratio.py").write_text(METHOD)
    for framework, text in (("torch", FOR_TORCH), ("jax", FOR_JAX)):
        with (package / framework / "layers.py").open("a") as file:
            file.write(text)
    touched = [path for path in package.rglob("*.py") if before.get(path) != path.stat().st_mtime_ns]
    assert len(touched) == 4

    (tmp_path / "use.py").write_text(USE)
    command = [sys.executable, str(tmp_path / "use.py"), str(tmp_path), str(tmp_path / "run")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
