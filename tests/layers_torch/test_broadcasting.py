"""Policies and bounds with or without the batch's axis, nothing outside, entropies held inside: every way the same."""

import itertools

import numpy as np
import pytest
import torch

import reference
from cases import CASES, KINDS
from families.pairs import KINDS as FAMILIES
from frameworks import TYPES, Torch, policies, without_numpy
from generators import gentle_pair
from trpl.torch import JointKLProjection, KLProjection

framework = Torch()
every_case = pytest.mark.parametrize("case", [case for case in CASES if not case.entropy], ids=str)
every_kind = pytest.mark.parametrize("kind", KINDS)
both_engines = pytest.mark.parametrize("itself", [False, True], ids=["numpy", "torch-itself"])
NUM = 3


def in_engine(itself, call):
    if itself:
        with without_numpy():
            return call()
    return call()


@every_kind
@every_case
def test_one_of_them_serves_a_batch(case, kind):
    """Values are those of copies, gradients the sums of theirs."""
    pair = gentle_pair(kind, NUM, 2)
    options = case.call_options(framework, pair)
    layer, make = case.make(framework), TYPES[kind]
    p, q = policies(framework, pair)
    for shared in itertools.product([False, True], repeat=3):
        if all(shared) or not any(shared) or (shared[0] and not shared[2]):  # a bound has the prediction's batch
            continue
        groups = ([*p], [*q], [*options.values()])
        rows = [[x[1] if one else x for x in group] for group, one in zip(groups, shared, strict=True)]
        leaves = [x.clone().requires_grad_() for group in rows for x in group]
        copies = [
            (x[None].expand(NUM, *x.shape) if one else x).contiguous().clone().requires_grad_()
            for group, one in zip(rows, shared, strict=True)
            for x in group
        ]
        weights = [torch.randn(x.shape, dtype=x.dtype, generator=torch.Generator().manual_seed(0)) for x in p]

        def run(given, weights=weights):
            named = dict(zip(options, given[4:], strict=True))
            found = layer(make(*given[:2]), make(*given[2:4]), **named)
            total = sum((w * x).sum() for w, x in zip(weights, found, strict=True))
            return [*found, *torch.autograd.grad(total, given)]

        for x, y in zip(run(leaves), run(copies), strict=True):
            y = y.sum(0) if y.ndim > x.ndim else y
            torch.testing.assert_close(x, y, rtol=1e-8, atol=1e-10, msg=lambda m, shared=shared: f"{shared}: {m}")


@every_kind
@every_case
@pytest.mark.parametrize("shapes", [((NUM,), (1,)), ((1,), (NUM,)), ((), (NUM,)), ((2, NUM), (NUM,))], ids=str)
def test_policies_of_different_batch_shapes_give_a_policy(case, kind, shapes):
    """Mean and covariance of one batch, that of both policies, also where one part is inside, or all of it."""
    core, batch_of_both = {"diag": 1, "full": 2}[kind], np.broadcast_shapes(*shapes)
    layer, make = case.make(framework, 0.5, 0.01), TYPES[kind]
    for shared, (mean, scale) in itertools.product(
        itertools.product([False, True], repeat=2), [(0.1, 0.5), (3.0, 0.5), (3.0, 1.0), (0.1, 1.0), (0.0, 1.0)]
    ):
        p, q = (
            make(
                torch.full((*batch, 2), m, dtype=torch.float64),
                (s * torch.eye(2, dtype=torch.float64) if core == 2 else s * torch.ones(2, dtype=torch.float64)).expand(
                    *(() if one else batch), *(2,) * core
                ),
            )
            for batch, one, m, s in zip(shapes, shared, (mean, 0.0), (scale, 1.0), strict=True)
        )
        projected = layer(p, q)
        assert projected.mean.shape[:-1] == batch_of_both
        assert projected.scale.shape[:-core] in ((), batch_of_both)
        audit = layer.audit(p, projected, q)
        after = audit.after.mean + audit.after.cov if case.joint else audit.after.mean
        assert float(after.max()) <= 0.5 * (1 + 1e-8)
        assert float(layer.penalty(p, projected).min()) >= 0.0


def unchanged(call, inputs):
    """The call is the identity, mapped or not, and so is its Jacobian."""
    num = len(call(*inputs))
    for found in (call(*inputs), torch.func.vmap(call)(*inputs)):
        for x, y in zip(found, inputs, strict=False):
            torch.testing.assert_close(x, y, rtol=0, atol=0)
    ones = tuple((x != 0.0).to(x.dtype) for x in inputs[:num])  # none above the diagonal of a factor
    pulled = torch.func.vjp(call, *inputs)[1](ones)
    for g, x in zip(pulled, inputs, strict=True):
        assert g.shape == x.shape
    for g, one in zip(pulled, ones, strict=False):
        torch.testing.assert_close(g, one, rtol=1e-14, atol=0)
    assert all(not g.any() for g in pulled[num:])


@every_kind
@every_case
def test_nothing_outside_under_transformations(case, kind):
    pair = gentle_pair(kind, NUM, 2)
    p, q = policies(framework, pair)
    layer, make = case.make(framework, 1e3, 1e3), TYPES[kind]
    unchanged(lambda *x: tuple(layer(make(*x[:2]), make(*x[2:]))), (*p, *q))


@pytest.mark.parametrize("kind", FAMILIES, ids=str)
def test_nothing_outside_in_any_family(kind):
    parts = [[torch.as_tensor(x) for own in kind.draw(NUM, seed=seed) for x in own] for seed in (1, 2)]
    layer, num = JointKLProjection(1e3), len(parts[0])

    def call(*arrays):
        return tuple(kind.arrays(layer(kind.unflatten(arrays[:num]), kind.unflatten(arrays[num:]))))

    unchanged(call, (*parts[0], *parts[1]))


@both_engines
@every_kind
@pytest.mark.parametrize("held", ["min_entropy", "entropy"])
def test_an_entropy_held_inside_the_bound(kind, held, itself):
    """The covariance is scaled to the entropy, in some states; derivatives by differences, also the entropy's."""
    pair = gentle_pair(kind, NUM, 2)
    p, q = policies(framework, pair)
    own = torch.as_tensor(reference.entropy(kind, pair.scale))
    target = own + torch.tensor([0.1, -0.2, 0.3], dtype=own.dtype)
    layer, make = JointKLProjection(50.0), TYPES[kind]
    lower = (lambda x: x.tril()) if kind == "full" else (lambda x: x)

    def call(mean, scale, target):
        return tuple(layer(make(mean, lower(scale)), q, **{held: target}))

    projected = in_engine(itself, lambda: call(*p, target))
    found = torch.as_tensor(reference.entropy(kind, projected[1].numpy()))
    expected = target if held == "entropy" else torch.maximum(own, target)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(projected[0], p.mean, rtol=0, atol=0)
    inputs = [x.clone().requires_grad_() for x in (*p, target)]
    assert in_engine(itself, lambda: torch.autograd.gradcheck(call, inputs, rtol=1e-5, atol=1e-7, fast_mode=True))
    assert np.isfinite(projected[1].numpy()).all()


def test_messages_name_the_policy_that_is_meant():
    """A distribution that is none of ours, in each place of each call."""
    p, q = policies(framework, gentle_pair("diag", NUM, 2))
    strange = torch.distributions.Poisson(torch.ones(NUM, 2))
    for layer in (KLProjection(0.1, 0.1), JointKLProjection(0.1)):
        calls = {
            "predicted": [
                lambda x, f=layer: f(x, q),
                lambda x, f=layer: f.penalty(x, p),
                lambda x, f=layer: f.audit(x, p, q),
            ],
            "old": [lambda x, f=layer: f(p, x), lambda x, f=layer: f.audit(p, p, x)],
            "projected": [lambda x, f=layer: f.penalty(p, x), lambda x, f=layer: f.audit(p, x, q)],
        }
        for name, some in calls.items():
            for call in some:
                with pytest.raises((ValueError, TypeError), match=f"^{name}\\b|{name} must"):
                    call(strange)
