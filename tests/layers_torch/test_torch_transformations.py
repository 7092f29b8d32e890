"""What PyTorch's transformations, compilers and modes make of the layers."""

import contextlib

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from cases import CASES, KINDS, SEPARATE
from frameworks import TYPES, Torch, policies, without_numpy
from generators import close_pair, gentle_pair
from trpl import DiagGaussian, FullGaussian
from trpl.torch import FrobeniusProjection, JointKLProjection, KLProjection, WassersteinProjection

framework = Torch()
every_case = pytest.mark.parametrize("case", CASES, ids=str)
every_kind = pytest.mark.parametrize("kind", KINDS)


def call_of(case, kind, options):
    """(mean, scale, old mean, old scale, *bounds) ↦ the projected mean and scale."""
    layer, make = case.make(framework), TYPES[kind]

    def call(*arrays):
        scale, old_scale = (x.tril() if kind == "full" else x for x in (arrays[1], arrays[3]))
        named = dict(zip(options, arrays[4:], strict=True))
        return tuple(layer(make(arrays[0], scale), make(arrays[2], old_scale), **named))

    return call


def arguments(case, kind, num=2, dim=2):
    pair = gentle_pair(kind, num, dim)
    options = case.call_options(framework, pair)
    return [x for p in policies(framework, pair) for x in p] + list(options.values()), options


@every_kind
@every_case
def test_jacobians(case, kind):
    """`jacrev`, a vectorised Jacobian and batched gradients are one gradient after another."""
    inputs, options = arguments(case, kind)
    call = call_of(case, kind, options)
    every = tuple(range(len(inputs)))
    expected = torch.autograd.functional.jacobian(call, tuple(inputs))
    found = torch.autograd.functional.jacobian(call, tuple(inputs), vectorize=True)
    reverse = torch.func.jacrev(call, argnums=every)(*inputs)
    for rows in zip(expected, found, reverse, strict=True):
        for one, two, three in zip(*rows, strict=True):
            torch.testing.assert_close(two, one, rtol=1e-10, atol=1e-12)
            torch.testing.assert_close(three, one, rtol=1e-10, atol=1e-12)


@every_kind
@pytest.mark.parametrize("case", [c for c in CASES if c.name in ("kl", "w2", "joint-min-entropy")], ids=str)
def test_gradcheck_with_batched_gradients(case, kind):
    inputs, options = arguments(case, kind)
    leaves = [x.clone().requires_grad_() for x in inputs]
    assert torch.autograd.gradcheck(
        call_of(case, kind, options), leaves, check_batched_grad=True, rtol=1e-4, atol=1e-6, fast_mode=True
    )


@every_kind
@every_case
@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # by PyTorch itself, in its own decompositions
def test_forward_mode_is_refused(case, kind):
    inputs, options = arguments(case, kind)
    call = call_of(case, kind, options)
    with (
        pytest.raises(NotImplementedError, match="reverse-mode derivatives only"),
        torch.autograd.forward_ad.dual_level(),
    ):
        call(torch.autograd.forward_ad.make_dual(inputs[0], torch.ones_like(inputs[0])), *inputs[1:])
    with pytest.raises(NotImplementedError, match="reverse-mode derivatives only"):
        torch.func.jvp(lambda x: call(x, *inputs[1:]), (inputs[0],), (torch.ones_like(inputs[0]),))


@every_kind
@every_case
def test_one_node_and_nothing_below_it(case, kind):
    """Mean and covariance come from one node of the graph, whose inputs are the leaves."""
    inputs, options = arguments(case, kind, 4, 3)
    leaves = [x.clone().requires_grad_() for x in inputs]
    make = TYPES[kind]
    projected = case.make(framework)(
        make(*leaves[:2]), make(*leaves[2:4]), **dict(zip(options, leaves[4:], strict=True))
    )
    (node,) = {x.grad_fn for x in projected}
    assert {type(n).__name__ for n, _ in node.next_functions if n is not None} == {"AccumulateGrad"}


@every_kind
@pytest.mark.parametrize("case", SEPARATE, ids=str)
def test_only_one_part_is_outside(case, kind):
    """The other part is the caller's tensor; gradients, also of batches of cotangents, are what both give together."""
    far, near = gentle_pair(kind), close_pair(kind, seed=0)
    mean_only = near._replace(mean=near.old_mean + 1.0)
    scale_only = near._replace(scale=far.scale, old_scale=far.old_scale)
    for pair, moved in ((mean_only, 0), (scale_only, 1)):
        (mean, scale), old = policies(framework, pair)
        leaves = TYPES[kind](mean.requires_grad_(), scale.requires_grad_())
        projected = case.make(framework)(leaves, old)
        assert projected[1 - moved] is leaves[1 - moved]
        weight = torch.randn(
            3, *projected[moved].shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0)
        )
        batched = torch.autograd.grad(projected[moved], leaves[moved], weight, is_grads_batched=True, retain_graph=True)
        for w, found in zip(weight, batched[0], strict=True):
            expected = torch.autograd.grad(projected[moved], leaves[moved], w, retain_graph=True)[0]
            torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("own", [False, True], ids=["numpy", "torch"])
@every_kind
@every_case
def test_autocast_is_off_inside(case, kind, own):
    predicted, old = policies(framework, gentle_pair(kind), "float32")
    layer = case.make(framework)
    options = case.call_options(framework, gentle_pair(kind), "float32")

    def results():
        scale = predicted.scale.clone().requires_grad_()
        new = predicted.with_scale(scale)
        projected = layer(new, old, **options)
        penalty = layer.penalty(new, projected)
        audit = layer.audit(new, projected, old, **options)
        gradient = torch.autograd.grad(sum(x.sum() for x in projected), scale)
        return [*projected, penalty, audit.after.cov, *gradient]

    with without_numpy() if own else contextlib.nullcontext():
        expected = results()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found = results()
    for one, two in zip(found, expected, strict=True):
        assert one.dtype == torch.float32
        assert torch.equal(one, two)


def test_defaults_of_pytorch_do_not_matter():
    predicted, old = policies(framework, gentle_pair("full"), "float32")
    layers = (KLProjection(0.03, 0.01), WassersteinProjection(0.03, 0.01), JointKLProjection(0.03))
    with without_numpy():
        expected = [layer(predicted, old) for layer in layers]
        try:
            torch.set_default_dtype(torch.float64)
            torch.set_default_device("meta")
            found = [layer(predicted, old) for layer in layers]
        finally:
            torch.set_default_dtype(torch.float32)
            torch.set_default_device(None)
    for one, two in zip(found, expected, strict=True):
        assert all(torch.equal(x, y) for x, y in zip(one, two, strict=True))


@every_kind
@every_case
def test_meta_and_fake_tensors_give_shapes(case, kind):
    pair = gentle_pair(kind)
    predicted, old = policies(framework, pair)
    options = case.call_options(framework, pair)
    layer = case.make(framework)
    expected = [tuple(x.shape) for x in layer(predicted, old, **options)]

    def shapes(convert):
        """Check the shapes of outputs and gradients of tensors without values."""
        given = [TYPES[kind](*(convert(x).requires_grad_() for x in p)) for p in (predicted, old)]
        named = {k: convert(v).requires_grad_() for k, v in options.items()}
        found = layer(*given, **named)
        inputs = [*given[0], *given[1], *named.values()]
        gradients = torch.autograd.grad(tuple(found), inputs, [torch.empty_like(x) for x in found])
        assert [tuple(x.shape) for x in found] == expected
        assert [x.shape for x in gradients] == [x.shape for x in inputs]
        return found, gradients

    found, gradients = shapes(lambda x: x.to("meta"))
    assert all(x.is_meta for x in (*found, *gradients))
    with FakeTensorMode() as mode:
        shapes(mode.from_tensor)


def test_real_bounds_among_fake_tensors_are_not_looked_at():
    layer = KLProjection(torch.tensor(0.03), torch.tensor(0.01))
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        p = DiagGaussian(*(mode.from_tensor(torch.ones(4, 2)) for _ in range(2)))
        assert layer(p, p).std.shape == (4, 2)


class Head(torch.nn.Module):
    """A module that exports: means and scales in, means and scales out."""

    def __init__(self, layer, make):
        super().__init__()
        self.layer, self.make = layer, make

    def forward(self, mean, scale, old_mean, old_scale):
        return tuple(self.layer(self.make(mean, scale), self.make(old_mean, old_scale)))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("layer", "make"),
    [
        (KLProjection(0.03, 1e-3), DiagGaussian),
        (KLProjection(0.03, 0.01), FullGaussian),
        (WassersteinProjection(0.03, 0.01), DiagGaussian),
        (FrobeniusProjection(0.03, 0.01), FullGaussian),
        (JointKLProjection(0.03), DiagGaussian),
    ],
    ids=lambda x: type(x).__name__ if isinstance(x, torch.nn.Module) else x.__name__,
)
def test_export_with_a_batch_of_any_size(layer, make):
    kind = "diag" if make is DiagGaussian else "full"
    head = Head(layer, make)
    small, large = ([x for p in policies(framework, gentle_pair(kind, num, 3)) for x in p] for num in (4, 9))
    batch = torch.export.Dim("batch", min=2, max=1024)
    with torch.no_grad():
        program = torch.export.export(head, tuple(small), dynamic_shapes=({0: batch},) * 4)
    for inputs in (small, large):
        for found, expected in zip(program.module()(*inputs), head(*inputs), strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)


def test_bounds_are_checked_when_a_layer_is_made():
    for wrong in (0.0, -1.0, np.inf, np.nan):
        for make in (KLProjection, WassersteinProjection, FrobeniusProjection):
            with pytest.raises(ValueError, match="mean_bound must be positive and finite"):
                make(wrong, 0.1)
        with pytest.raises(ValueError, match="bound must be positive and finite"):
            JointKLProjection(wrong)
    with pytest.raises(ValueError, match="min_entropy must be finite"):
        JointKLProjection(0.1, min_entropy=np.inf)
    for wrong, words in (
        (torch.tensor([0.1, 0.0]), "positive and finite; got 0"),
        (torch.nn.Parameter(torch.tensor(torch.nan)), "positive and finite; got nan"),
        (torch.tensor(1), "float32 or float64, not int64"),
        ("0.1", "a number or an array, not str"),
        (None, "a number or an array, not NoneType"),
    ):
        with pytest.raises(ValueError, match=f"mean_bound must be {words}"):
            KLProjection(wrong, 0.1)  # pyright: ignore[reportArgumentType]
    KLProjection(torch.tensor(0.1, device="meta"), 0.1)  # no value to look at


def test_a_meta_tensor_among_others_is_refused():
    """The result would have no values: it was memory that nothing had written to."""
    predicted, old = policies(framework, gentle_pair("diag"))
    for layer, around in (
        (KLProjection(torch.tensor(0.1, device="meta"), 0.1), old),
        (KLProjection(0.1, 0.1), type(old)(*(x.to("meta") for x in old))),
    ):
        with pytest.raises(ValueError, match="on the meta device"):
            layer(predicted, around)
