"""The joint layer in JAX against PyTorch: values and gradients to 1e-10.

Compiling is most of the time, so it happens once for each function: "everything" has a part of each family, and only a
categorical alone has a search of its own.
"""

from functools import cache

import jax
import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal

import trpl
import trpl.jax
import trpl.torch
from families.pairs import BOUND, BY_NAME, options, policies
from frameworks import QUICK
from trpl.engines import engine_of
from trpl.natural.categorical import CategoricalPath

pytestmark = pytest.mark.usefixtures("x64")
CASES = [
    *(("categorical", held) for held in (None, "min_entropy", "entropy")),
    ("everything", None),
    pytest.param("everything", "entropy", marks=pytest.mark.stress),  # each by itself is above; XLA takes its time
]


def weights(name):
    kind, rng = BY_NAME[name], np.random.default_rng(1)
    return [rng.normal(size=x.shape) for x in kind.arrays(policies(kind, np.asarray)[0])]


@cache
def compiled(name, held):
    """Policies and options to the projected arrays and all gradients; without an entropy mapped state by state."""
    kind, given = BY_NAME[name], weights(name)

    def project(p, q, named):
        return trpl.jax.JointKLProjection(1.0)(p, q, **named)

    def total(p, q, named):
        out = kind.arrays((jax.vmap(project) if held is None else project)(p, q, named))
        return sum((w * x).sum() for w, x in zip(given, out, strict=True)), out

    def run(p, q, named):
        (_, out), grads = jax.value_and_grad(total, argnums=(0, 1, 2), has_aux=True)(p, q, named)
        return [*out, *kind.arrays(grads[0]), *kind.arrays(grads[1]), *(grads[2][k] for k in named)]

    return jax.jit(run, compiler_options=QUICK)


def in_torch(name, p, q, named):
    kind, num = BY_NAME[name], len(weights(name))
    leaves = [torch.as_tensor(x).requires_grad_() for x in (*kind.arrays(p), *kind.arrays(q), *named.values())]
    given = dict(zip(named, leaves[2 * num :], strict=True))
    layer = trpl.torch.JointKLProjection(1.0)
    out = kind.arrays(layer(kind.unflatten(leaves[:num]), kind.unflatten(leaves[num : 2 * num]), **given))
    total = sum((torch.as_tensor(w) * x).sum() for w, x in zip(weights(name), out, strict=True))
    return [x.detach().numpy() for x in (*out, *torch.autograd.grad(total, leaves))]


def compare(ours, other):
    for x, y in zip(ours, other, strict=True):
        x, y = (np.tril(z) if np.ndim(z) == 3 else np.asarray(z) for z in (x, y))
        assert_allclose(x, y, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(("name", "held"), CASES)
def test_frameworks_agree(name, held):
    kind, named = BY_NAME[name], options(BY_NAME[name], held)
    expected = in_torch(name, *policies(kind, np.asarray), named)
    found = compiled(name, held)(*policies(kind, jax.numpy.asarray), named)
    compare(found, expected)


def test_masked_classes():
    named = options(BY_NAME["categorical"], None)
    mask = np.zeros((6, 5), dtype=bool)
    mask[::2, 1] = mask[3, 4] = True
    p, q = (trpl.Categorical(np.where(mask, -np.inf, x.logits)) for x in policies(BY_NAME["categorical"], np.asarray))
    found = compiled("categorical", None)(*(trpl.Categorical(jax.numpy.asarray(x.logits)) for x in (p, q)), named)
    given, out = weights("categorical")[0], np.asarray(found[0])
    assert_array_equal(out == -np.inf, mask)
    assert np.isfinite(given).all()
    leaves = torch.as_tensor(p.logits).requires_grad_()
    expected = trpl.torch.JointKLProjection(BOUND)(
        trpl.Categorical(leaves), trpl.Categorical(torch.as_tensor(q.logits))
    )
    (grad,) = torch.autograd.grad(expected.logits, leaves, torch.as_tensor(np.where(mask, 0.0, given)))
    compare([out[~mask], np.asarray(found[1])[~mask]], [expected.logits.detach().numpy()[~mask], grad.numpy()[~mask]])


def test_classes_that_both_forbid_cost_nothing():
    """Two sums of the supported mass, compiled each in its own way, would differ by 4e-16."""
    rng = np.random.default_rng(0)
    mask = rng.random((1000, 18)) < 0.3
    p, q = (np.where(mask, -np.inf, rng.normal(size=(1000, 18))) for _ in range(2))
    floor = jax.jit(lambda p, q: CategoricalPath(engine_of(p, q), p, q).floor)(p, q)
    assert_array_equal(floor, 0.0)


def test_float32():
    kind = BY_NAME["categorical"]
    project = jax.jit(trpl.jax.JointKLProjection(BOUND).__call__, compiler_options=QUICK)
    found = project(*policies(kind, lambda x: jax.numpy.asarray(x, dtype="float32")))
    assert found.logits.dtype == "float32"
    wide = trpl.Categorical(np.asarray(found.logits, dtype="float64"))
    p, q = policies(kind, np.asarray)
    assert_allclose(trpl.kl(wide, q), np.minimum(BOUND, trpl.kl(p, q)), rtol=1e-3)


def test_eager_calls_compile_once(compiled_in_haste, caplog):
    """A class variable and bits, which no Gaussian is: neither a call nor a gradient compiles the second time."""
    layer = trpl.jax.JointKLProjection(BOUND)
    old = trpl.Product((trpl.Categorical(np.zeros((3, 4))), trpl.Bernoulli(np.zeros((3, 2)))))
    old = jax.tree.map(jax.numpy.asarray, old)
    predicted = jax.tree.map(lambda x: x + jax.numpy.arange(x.shape[-1]), old)
    gradient = jax.grad(lambda p: sum(x[..., 0].sum() for x in jax.tree.leaves(layer(p, old))))
    jax.block_until_ready((layer(predicted, old), gradient(predicted)))
    with jax.log_compiles(), caplog.at_level("WARNING"):
        for _ in range(2):
            jax.block_until_ready((layer(predicted, old), gradient(predicted)))
    assert not [r for r in caplog.records if "ompil" in r.getMessage()]
