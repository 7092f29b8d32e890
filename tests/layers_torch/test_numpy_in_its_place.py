"""Small batches on the CPU are computed by NumPy on PyTorch's memory: nobody must notice but for the time."""

import warnings

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from cases import CASES, KINDS, by_name, policies
from frameworks import without_numpy
from generators import gentle_pair
from trpl import DiagGaussian, FullGaussian, engines
from trpl.torch import KLProjection

every_case = pytest.mark.parametrize("case", CASES, ids=str)
every_kind = pytest.mark.parametrize("kind", KINDS)
TORCH = by_name("torch")


def leaves(kind, dtype="float64"):
    predicted, old = policies(TORCH, gentle_pair(kind), dtype)
    return type(predicted)(*(x.requires_grad_() for x in predicted)), old


def total(projected):
    return sum((x * torch.arange(x.numel(), dtype=x.dtype).reshape(x.shape).cos()).sum() for x in projected)


@pytest.fixture
def seen(monkeypatch):
    """What was asked of `suits_numpy`, and what it said."""
    answers, ask = [], engines.suits_numpy

    def remember(tensors):
        answers.append(ask(tensors))
        return answers[-1]

    monkeypatch.setattr(engines, "suits_numpy", remember)
    return answers


@every_kind
def test_it_is_numpy_that_computes(kind, seen):
    predicted, old = leaves(kind)
    total(KLProjection(0.03, 0.01)(predicted, old)).backward()
    assert len(seen) == 2  # once forward, once backward
    assert all(seen)


class Counting(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(func.name())
        return func(*args, **(kwargs or {}))


class Own(torch.Tensor):
    """A subclass that sees what is done to it."""

    calls: list = []  # noqa: RUF012

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        cls.calls.append(getattr(func, "__name__", str(func)))
        return super().__torch_function__(func, types, args, kwargs or {})


def test_modes_and_subclasses_see_pytorchs_operations():
    predicted, old = leaves("diag")
    layer = KLProjection(0.03, 0.01)
    expected = layer(predicted, old)
    with Counting() as mode:
        found = layer(predicted, old)
    assert "aten::log1p" in mode.names
    torch.testing.assert_close(tuple(found), tuple(expected), rtol=1e-12, atol=1e-14)
    Own.calls.clear()
    own = DiagGaussian(*(x.detach().as_subclass(Own) for x in predicted))
    found = layer(own, DiagGaussian(*(x.as_subclass(Own) for x in old)))
    assert "log1p" in Own.calls
    torch.testing.assert_close(found.std.as_subclass(torch.Tensor), expected.std.detach(), rtol=1e-12, atol=1e-14)


@every_kind
@every_case
def test_inputs_are_not_touched_and_nothing_is_shared(case, kind):
    """Neither the policies nor the cotangents change, and neither the results nor the gradients are their memory."""
    predicted, old = leaves(kind)
    options = case.call_options(TORCH, gentle_pair(kind))
    before = [x.detach().clone() for x in (*predicted, *old)]
    projected = case.make(TORCH)(predicted, old, **options)
    weights = tuple(torch.ones_like(x) for x in projected)
    gradients = torch.autograd.grad(tuple(projected), tuple(predicted), weights)
    for x, y in zip((*predicted, *old), before, strict=True):
        assert torch.equal(x, y)
    assert all(bool((w == 1.0).all()) for w in weights)
    for x in (*projected, *gradients):
        assert all(x.data_ptr() != y.data_ptr() for y in (*predicted, *old, *weights))


@every_kind
def test_a_gradient_that_passes_is_not_the_cotangents_memory(kind):
    """Where some rows are inside: what is accumulated must not be what the caller holds."""
    predicted, old = leaves(kind)
    near = type(predicted)(
        *((o + 1e-9 * (p - o)).detach().requires_grad_() for p, o in zip(predicted, old, strict=True))
    )
    projected = KLProjection(0.03, 0.01)(near, old)
    weights = tuple(torch.ones_like(x) for x in projected)
    torch.autograd.backward(tuple(x * 1.0 for x in projected), weights)
    for x, w in zip(near, weights, strict=True):
        assert torch.equal(x.grad, w)
        x.grad.mul_(2.0)
        assert bool((w == 1.0).all())


@every_kind
def test_changing_an_input_before_the_backward_pass_is_an_error(kind):
    predicted, old = leaves(kind)
    moved = type(predicted)(*(x * 1.0 for x in predicted))
    loss = total(KLProjection(0.03, 0.01)(moved, old))
    moved.scale.mul_(2.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@every_kind
def test_what_is_kept_is_kept_the_way_pytorch_keeps_things(kind):
    """Hooks on saved tensors see all of it, and it is gone after the backward pass."""
    predicted, old = leaves(kind)
    packed = []

    def pack(x):
        packed.append(x)
        return x.clone()

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        loss = total(KLProjection(0.03, 0.01)(predicted, old))
    assert len(packed) > 5
    expected = torch.autograd.grad(total(KLProjection(0.03, 0.01)(predicted, old)), tuple(predicted))
    found = torch.autograd.grad(loss, tuple(predicted))
    assert all(torch.equal(x, y) for x, y in zip(found, expected, strict=True))
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(loss, tuple(predicted))


@every_kind
def test_what_hooks_kept_is_used_even_if_an_input_has_changed_since(kind):
    predicted, old = leaves(kind)
    expected = torch.autograd.grad(total(KLProjection(0.03, 0.01)(predicted, old)), tuple(predicted))
    moved = type(predicted)(*(x * 1.0 for x in predicted))
    with torch.autograd.graph.saved_tensors_hooks(torch.clone, lambda x: x):
        loss = total(KLProjection(0.03, 0.01)(moved, old))
    moved.scale.data.mul_(2.0)
    found = torch.autograd.grad(loss, tuple(predicted))
    assert all(torch.equal(x, y) for x, y in zip(found, expected, strict=True))


@every_kind
def test_under_checkpointing(kind):
    predicted, old = leaves(kind)
    layer = KLProjection(0.03, 0.01)
    expected = torch.autograd.grad(total(layer(predicted, old)), tuple(predicted))
    again = checkpoint(lambda *p: tuple(layer(type(predicted)(*p), old)), *predicted, use_reentrant=False)
    found = torch.autograd.grad(total(again), tuple(predicted))
    assert all(torch.equal(x, y) for x, y in zip(found, expected, strict=True))


@every_kind
@every_case
def test_layouts_do_not_matter(case, kind):
    """Transposed and strided memory."""
    predicted, old = leaves(kind)
    options = case.call_options(TORCH, gentle_pair(kind))
    expected = case.make(TORCH)(predicted, old, **options)

    def spread(x):
        return torch.stack([x, x + 1.0], dim=-1)[..., 0]

    def turned(x):
        return x.mT.contiguous().mT if x.ndim > 1 else x

    for change in (spread, turned):
        found = case.make(TORCH)(
            type(predicted)(*map(change, predicted)),
            type(old)(*map(change, old)),
            **{name: spread(bound) for name, bound in options.items()},
        )
        torch.testing.assert_close(tuple(found), tuple(expected), rtol=1e-11, atol=1e-13)


@every_kind
def test_no_warnings_and_no_settings_of_numpy(kind):
    """Equal policies and far ones divide by 0 on the way; who made NumPy raise must not be stopped by that."""
    predicted, old = leaves(kind)
    scale = torch.where(torch.arange(len(old.mean)).reshape(-1, *[1] * (old.scale.ndim - 1)) % 2 == 0, old.scale, 0.0)
    mixed = predicted.with_scale((torch.where(scale == 0.0, predicted.scale.detach(), scale)).requires_grad_())
    with np.errstate(all="raise"), warnings.catch_warnings():
        warnings.simplefilter("error")
        total(KLProjection(0.03, 1e-3)(mixed, old)).backward()
        assert np.geterr()["divide"] == "raise"
    assert bool(torch.isfinite(mixed.scale.grad).all())


@pytest.mark.parametrize("bound", [1e-3, 0.1, 10.0])
@every_kind
def test_both_hold_the_bound_on_hard_pairs(kind, bound):
    """Condition numbers to 1e8: what NumPy gives is what PyTorch gives, as far as the pair determines it."""
    draw = np.random.default_rng(3)
    dim = 6
    std = 10.0 ** draw.uniform(-4, 0, size=(2, 200, dim))
    mean = torch.as_tensor(draw.normal(size=(200, dim)))
    if kind == "diag":
        p, q = (DiagGaussian(mean, torch.as_tensor(s)) for s in std)
    else:
        turn = np.linalg.qr(draw.normal(size=(2, 200, dim, dim)))[0]
        p, q = (
            FullGaussian(mean, torch.linalg.cholesky(torch.as_tensor((t * s[:, None] ** 2) @ t.swapaxes(-1, -2))))
            for t, s in zip(turn, std, strict=True)
        )
    layer = KLProjection(1.0, bound)
    found = layer(p, q)
    with without_numpy():
        expected = layer(p, q)
    for one in (found, expected):
        audit = layer.audit(p, one, q)
        assert bool(audit.cov_projected.any())
        assert float((audit.after.cov / bound - 1.0)[audit.cov_projected].abs().max()) < 1e-6
    torch.testing.assert_close(found.scale, expected.scale, rtol=1e-6, atol=1e-9)
