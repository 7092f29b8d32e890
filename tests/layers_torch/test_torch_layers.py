"""What PyTorch users expect of the layers: distributions, modules, vmap, memory, repeated calls."""

import copy
import gc
import time
import weakref

import numpy as np
import pytest
import torch
import torch.utils._pytree as pytree
from torch.distributions import Independent, MultivariateNormal, Normal
from torch.utils._python_dispatch import TorchDispatchMode

from cases import CASES, KINDS, SEPARATE
from frameworks import TYPES, Torch, policies
from generators import gentle_pair
from trpl import Categorical, ConvergenceError, DiagGaussian, FullGaussian, Product, entropy, kl, log_prob
from trpl.torch import FrobeniusProjection, JointKLProjection, KLProjection, WassersteinProjection

framework = Torch()
every_case = pytest.mark.parametrize("case", CASES, ids=str)
every_kind = pytest.mark.parametrize("kind", KINDS)


def total(projected):
    return sum((torch.cos(torch.arange(x.numel(), dtype=x.dtype)).reshape(x.shape) * x).sum() for x in projected)


@every_kind
@every_case
def test_distributions_in_and_out(case, kind):
    pair = gentle_pair(kind)
    predicted, old = policies(framework, pair)
    options = case.call_options(framework, pair)

    def as_distribution(p):
        return (
            Independent(Normal(p.mean, p.std), 1) if kind == "diag" else MultivariateNormal(p.mean, scale_tril=p.chol)
        )

    layer = case.make(framework)
    expected = layer(predicted, old, **options)
    found = layer(as_distribution(predicted), as_distribution(old), **options)
    assert isinstance(found, Independent if kind == "diag" else MultivariateNormal)
    torch.testing.assert_close(found.mean, expected.mean, rtol=0, atol=0)
    scale = found.base_dist.scale if kind == "diag" else found.scale_tril
    torch.testing.assert_close(scale, expected.scale, rtol=0, atol=0)
    penalty = layer.penalty(as_distribution(predicted), found)
    torch.testing.assert_close(penalty, layer.penalty(predicted, expected))
    audit = layer.audit(as_distribution(predicted), found, as_distribution(old), **options)
    torch.testing.assert_close(audit.after.cov, layer.audit(predicted, expected, old, **options).after.cov)


def test_distributions_that_are_not_gaussian_policies():
    layer = KLProjection(0.1, 0.1)
    good = Independent(Normal(torch.zeros(2, 3), torch.ones(2, 3)), 1)
    with pytest.raises(ValueError, match=r"predicted must be .*wrap it in Independent"):
        layer(good.base_dist, good)
    with pytest.raises(ValueError, match="old must have one event dimension"):
        layer(good, Independent(good.base_dist, 2))
    with pytest.raises(ValueError, match="not a Uniform"):
        layer(torch.distributions.Uniform(torch.zeros(2), torch.ones(2)), good)
    with pytest.raises(ValueError, match=r"not an Independent\(Uniform\)"):
        layer(Independent(torch.distributions.Uniform(torch.zeros(2, 3), torch.ones(2, 3)), 1), good)
    squashed = torch.distributions.TransformedDistribution(good, [torch.distributions.TanhTransform()])
    with pytest.raises(ValueError, match=r"not a TransformedDistribution; .*integrations\.distributions\.project"):
        layer(squashed, squashed)


def test_shared_distribution_is_expanded_on_the_way_out():
    layer = WassersteinProjection(0.1, 0.1)
    predicted = DiagGaussian(torch.zeros(4, 2), torch.tensor([1.0, 2.0]))
    assert layer(predicted, predicted).std.shape == (2,)
    one = Independent(Normal(torch.zeros(4, 2), torch.tensor([1.0, 2.0]).expand(4, 2)), 1)
    assert layer(one, one).mean.shape == (4, 2)


@every_kind
@every_case
def test_vmap_and_per_sample_gradients(case, kind):
    """`vmap` of the layer is the layer on a batch; `vmap(grad)` gives each state's own gradient."""
    pair = gentle_pair(kind)
    predicted, old = policies(framework, pair)
    options = case.call_options(framework, pair)
    layer, make = case.make(framework), TYPES[kind]

    def one(p, q, bounds):
        return tuple(layer(make(*p), make(*q), **bounds))

    batched = torch.func.vmap(one)(tuple(predicted), tuple(old), options)
    expected = layer(predicted, old, **options)
    for found, want in zip(batched, expected, strict=True):
        torch.testing.assert_close(found, want, rtol=1e-11, atol=1e-13)

    found = torch.func.vmap(torch.func.grad(lambda p, q, b: sum(x.sum() for x in one(p, q, b))))(
        tuple(predicted), tuple(old), options
    )
    leaves = [x.clone().requires_grad_() for x in predicted]
    want = torch.autograd.grad(sum(x.sum() for x in layer(make(*leaves), old, **options)), leaves)
    for got, expected_gradient in zip(found, want, strict=True):
        torch.testing.assert_close(got, expected_gradient, rtol=1e-10, atol=1e-12)


@every_kind
def test_nested_vmap_and_shared_old(kind):
    pair = gentle_pair(kind)
    predicted, old = policies(framework, pair)
    layer, make = KLProjection(0.03, 0.01), TYPES[kind]
    shape = (2, 3)
    nested = torch.func.vmap(torch.func.vmap(lambda m, s: tuple(layer(make(m, s), make(old.mean[0], old.scale[0])))))
    found = nested(predicted.mean.reshape(*shape, 3), predicted.scale.reshape(*shape, *predicted.scale.shape[1:]))
    expected = layer(predicted, make(old.mean[0].expand(6, 3), old.scale[0].expand_as(predicted.scale)))
    torch.testing.assert_close(found[1].reshape(expected.scale.shape), expected.scale, rtol=1e-11, atol=1e-13)


@every_kind
@every_case
def test_a_second_forward_does_not_spoil_the_first_backward(case, kind):
    """No state between calls: the authors' release kept one solver, sized for the first batch."""
    layer = case.make(framework)
    pairs = [gentle_pair(kind), gentle_pair(kind, 4, 2, seed=5), gentle_pair(kind, 9, 5, seed=6)]
    alone, leaves, outputs = [], [], []
    for pair in pairs:
        predicted, old = policies(framework, pair)
        options = case.call_options(framework, pair)
        for store in (alone, outputs):
            scale = predicted.scale.clone().requires_grad_()
            out = total(layer(predicted.with_scale(scale), old, **options))
            if store is alone:
                alone.append(torch.autograd.grad(out, scale)[0])
            else:
                leaves.append(scale)
                outputs.append(out)
    for out, scale, expected in zip(reversed(outputs), reversed(leaves), reversed(alone), strict=True):
        assert torch.equal(torch.autograd.grad(out, scale)[0], expected)


@every_kind
@every_case
def test_nothing_is_kept_between_calls(case, kind):
    layer = case.make(framework)
    pair = gentle_pair(kind)
    predicted, old = policies(framework, pair)
    options = case.call_options(framework, pair)
    scale = predicted.scale.clone().requires_grad_()
    projected = layer(predicted.with_scale(scale), old, **options)
    total(projected).backward()
    watched = [weakref.ref(x) for x in (*projected, scale, old.scale, predicted.mean)]
    before = set(vars(layer)) | set(dict(layer.named_buffers()))
    del projected, scale, old, predicted
    gc.collect()
    assert [ref() for ref in watched] == [None] * len(watched)
    assert set(vars(layer)) | set(dict(layer.named_buffers())) == before


class Largest(TorchDispatchMode):
    """The largest tensor that any operation made, and the largest batch that was decomposed."""

    def __init__(self):
        super().__init__()
        self.elements, self.decomposed = 0, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for x in pytree.tree_leaves(out):
            if isinstance(x, torch.Tensor):
                self.elements = max(self.elements, x.numel())
        if any(word in func.name() for word in ("eigh", "svd", "_qr", "cholesky", "while")) and isinstance(
            args[0], torch.Tensor
        ):
            self.decomposed = max(self.decomposed, args[0].shape[:-2].numel())
        return out


@pytest.mark.parametrize("case", CASES, ids=str)
def test_memory_is_linear_in_the_batch_and_has_no_fourth_power(case):
    """No operation, forward or backward, makes more than two matrices for each state (the stacked factors of a QR)."""
    for num, dim in ((3, 12), (24, 12), (3, 24)):
        pair = gentle_pair("full", num, dim)
        predicted, old = policies(framework, pair)
        scale = predicted.scale.clone().requires_grad_()
        options = case.call_options(framework, pair)
        with Largest() as largest:
            total(case.make(framework)(predicted.with_scale(scale), old, **options)).backward()
        assert largest.elements <= 2 * num * dim * dim


@pytest.mark.parametrize("case", SEPARATE, ids=str)
def test_a_shared_covariance_is_solved_once(case):
    pair = gentle_pair("full", 50, 3)
    predicted, old = policies(framework, pair._replace(scale=pair.scale[0], old_scale=pair.old_scale[0]))
    with Largest() as largest:
        projected = case.make(framework)(predicted, old)
    assert projected.chol.shape == (3, 3)
    assert largest.decomposed <= 1
    with Largest() as largest:
        case.make(framework)(*policies(framework, pair))
    assert largest.decomposed == 50  # so the counter counts


@pytest.mark.parametrize("case", [c for c in CASES if c.entropy is None], ids=str)
def test_no_decomposition_when_nothing_is_outside(case):
    if case.joint or case.metric.startswith("w2"):
        pytest.skip("its distance itself needs a decomposition")
    pair = gentle_pair("full")
    predicted, old = policies(framework, pair)
    with Largest() as largest:
        projected = case.make(framework, mean_bound=1e9, cov_bound=1e9)(predicted, old)
    assert largest.decomposed == 0
    assert projected.chol is predicted.chol
    assert projected.mean is predicted.mean


@every_kind
@every_case
def test_second_derivatives_are_refused_or_right(case, kind):
    """An error rather than a wrong number, also when the cotangent of the first one is a constant."""
    pair = gentle_pair(kind, 2, 2)
    predicted, old = policies(framework, pair)
    options = case.call_options(framework, pair)
    layer = case.make(framework, check=False)

    def gradient(scale, create_graph):
        lower = scale.tril() if kind == "full" else scale
        out = layer(predicted.with_scale(lower), old, **options).scale.sum()
        return torch.autograd.grad(out, scale, create_graph=create_graph)[0]

    scale = predicted.scale.clone().requires_grad_()
    direction = torch.cos(torch.arange(scale.numel(), dtype=scale.dtype)).reshape(scale.shape)
    direction = direction.tril() if kind == "full" else direction
    try:
        (second,) = torch.autograd.grad((gradient(scale, True) * direction).sum() + (scale**3).sum(), scale)
    except RuntimeError as error:
        if "second derivative" in str(error):
            return
        raise
    step = 1e-6
    ahead, behind = (gradient((predicted.scale + s * step * direction).requires_grad_(), False) for s in (1, -1))
    expected = (ahead - behind) / (2 * step)
    second = second - 3 * scale.detach() ** 2
    second = second.tril() if kind == "full" else second
    torch.testing.assert_close(second, expected, rtol=1e-4, atol=1e-6)


def test_bounds_are_attributes_buffers_or_parameters():
    number = KLProjection(0.03, 0.01)
    assert not list(number.parameters()) + list(number.buffers())
    held = KLProjection(torch.tensor(0.03), torch.nn.Parameter(torch.tensor(0.01)))
    assert set(held.state_dict()) == {"mean_bound", "cov_bound"}
    assert [name for name, _ in held.named_parameters()] == ["cov_bound"]
    predicted, old = policies(framework, gentle_pair("diag"), "float32")
    held(predicted, old).std.sum().backward()
    assert torch.isfinite(held.cov_bound.grad)
    assert held.cov_bound.grad != 0
    torch.testing.assert_close(held(predicted, old).std, number(predicted, old).std)
    assert held.double()(*policies(framework, gentle_pair("diag"))).std.dtype == torch.float64


def test_bounds_may_be_assigned_as_numbers_and_as_tensors():
    """As on a schedule. A number in the place of a tensor was PyTorch's TypeError, a tensor no part of the state."""
    predicted, old = policies(framework, gentle_pair("diag"), "float32")
    for layer, name in ((KLProjection(torch.tensor(0.5), 0.01), "mean_bound"), (JointKLProjection(0.5), "bound")):
        for bound in (1e-3, torch.tensor(2e-3), 4e-3, torch.nn.Parameter(torch.tensor(8e-3))):
            setattr(layer, name, bound)
            assert name not in vars(layer) or not isinstance(bound, torch.Tensor)
            assert set(layer.state_dict()) == ({name} if isinstance(bound, torch.Tensor) else set())
            wanted = type(layer)(**({"mean_bound": bound, "cov_bound": 0.01} if name != "bound" else {"bound": bound}))
            torch.testing.assert_close(layer(predicted, old).mean, wanted(predicted, old).mean)
        with pytest.raises(TypeError, match="parameter"):  # would take a learned bound from the optimiser
            setattr(layer, name, 0.1)


def test_bounds_of_parts_are_buffers_and_parameters_too():
    """Those in a tuple were out of reach for optimisers, `state_dict`, `to` and `functional_call`."""
    own = torch.nn.Parameter(torch.tensor(0.01))
    layer = JointKLProjection((torch.tensor(0.05), own), min_entropy=(None, torch.tensor(0.1)))
    assert dict(layer.named_parameters()) == {"bound_1": own}
    assert set(layer.state_dict()) == {"bound_0", "bound_1", "min_entropy_1"}
    assert {x.dtype for x in layer.double().state_dict().values()} == {torch.float64}
    one = torch.ones(3, 2, dtype=torch.float64)
    predicted, old = (Product((Categorical(0 * one), DiagGaussian(x, one))) for x in (one, 0 * one))

    def mean(bound):
        layer = JointKLProjection((0.05, torch.tensor(0.01, dtype=torch.float64)))
        return torch.func.functional_call(layer, {"bound_1": bound}, (predicted, old)).parts[1].mean[0, 0]

    bound = torch.tensor(0.04, dtype=torch.float64)
    torch.testing.assert_close(mean(bound), bound**0.5)  # ½ · 2 · μ² = ε
    torch.testing.assert_close(torch.func.grad(mean)(bound), 0.5 * bound**-0.5)


def test_bounds_of_parts_may_be_assigned():
    """As on a schedule; they are then the layer's, as a single bound would be."""
    one = torch.ones(3, 2)
    predicted, old = (
        Product((Categorical(torch.tensor([x, 0.0]) * one), DiagGaussian(x * one, one))) for x in (3.0, 0.0)
    )

    def distances(layer):
        found = layer(predicted, old).parts
        return [kl(p, q)[0].item() for p, q in zip(found, old.parts, strict=True)]

    layer = JointKLProjection((0.04, torch.tensor(0.01)))
    for bounds in (
        (0.02, 0.03),
        [torch.tensor(0.05), 0.06],
        (torch.tensor(0.01), torch.nn.Parameter(torch.tensor(0.02))),
    ):
        layer.bound = bounds
        assert distances(layer) == pytest.approx([torch.as_tensor(x).item() for x in bounds], rel=1e-4)
        assert set(layer.state_dict()) == {f"bound_{i}" for i, x in enumerate(bounds) if isinstance(x, torch.Tensor)}
    assert distances(copy.deepcopy(layer)) == distances(layer)
    layer.bound = 0.03
    assert not layer.state_dict()
    assert sum(distances(layer)) == pytest.approx(0.03, rel=1e-4)
    layer.bound = (0.01, 0.02)
    assert distances(torch.compile(layer, fullgraph=True, backend="aot_eager")) == distances(layer)


def test_compiled_an_excess_that_overflows_is_nan():
    """Not the prediction; equal policies, whose root is 0/0, stay."""
    old = DiagGaussian(torch.zeros(2, 3), torch.ones(2, 3))
    predicted = DiagGaussian(old.mean, torch.tensor([[1e-20, 1.0, 1.0], [1.0, 1.0, 1.0]]))
    torch._dynamo.reset()
    layer = torch.compile(KLProjection(0.03, 1e-3), fullgraph=True, backend="aot_eager")
    std = layer(predicted, old).std
    assert std.isnan().any(-1).tolist() == [True, False]
    assert std[1].tolist() == [1.0, 1.0, 1.0]


def test_layers_print_what_they_are():
    assert repr(KLProjection(0.03, 0.01)) == "KLProjection(mean_bound=0.03, cov_bound=0.01)"
    exact = WassersteinProjection(0.1, 0.1, form="exact")
    assert repr(exact) == "WassersteinProjection(mean_bound=0.1, cov_bound=0.1, form='exact')"
    assert "whitened=True" in repr(FrobeniusProjection(0.1, 0.1, whitened=True))
    assert "bound=0.1" in repr(JointKLProjection(0.1))


def test_gaussians_are_pytrees():
    for value in (DiagGaussian(torch.zeros(2), torch.ones(2)), FullGaussian(torch.zeros(2), torch.eye(2))):
        leaves, spec = pytree.tree_flatten(value)
        assert len(leaves) == 2
        assert type(pytree.tree_unflatten(leaves, spec)) is type(value)


def compiles(test):
    """A test that compiles, with what PyTorch warns of inside its own compiler."""
    for message in (
        "ignore:`torch._prims_common.check` is deprecated:FutureWarning",
        "ignore:.*should not be instantiated:DeprecationWarning",
        "ignore:`torch.jit.script_method` is deprecated:DeprecationWarning",
    ):
        test = pytest.mark.filterwarnings(message)(test)
    return pytest.mark.slow(test)


@compiles
@every_kind
@pytest.mark.parametrize("name", ["kl", "w2", "frobenius", "joint-min-entropy"])
def test_compile_fullgraph(name, kind):
    """One graph, no breaks, the same numbers and gradients; with the checks left on.

    Inductor generates code for what it fuses, w2, and around one opaque operator, kl. The other layers are the same
    operator, and compiling it takes seconds: for them AOTAutograd alone makes the graphs.
    """
    if (name, kind) in (("w2", "full"), ("frobenius", "diag")):
        pytest.skip("each family once; compiling takes seconds")
    backend = "inductor" if (name, kind) in (("w2", "diag"), ("kl", "diag")) else "aot_eager"
    case = next(c for c in CASES if c.name == name)
    torch._dynamo.reset()
    pair = gentle_pair(kind, 4, 2)
    predicted, old = policies(framework, pair)
    options = case.call_options(framework, pair)
    layer = case.make(framework, check=True)
    compiled = torch.compile(layer, fullgraph=True, backend=backend)
    expected, found = [], []
    for call, store in ((layer, expected), (compiled, found)):
        scale = predicted.scale.clone().requires_grad_()
        projected = call(predicted.with_scale(scale), old, **options)
        store.extend([*projected, *torch.autograd.grad(total(projected), scale)])
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize(("layer", "batch"), [(KLProjection(0.03, 1e-3), ()), (FrobeniusProjection(0.03, 1e-3), (4,))])
def test_a_loss_around_full_covariances_is_one_graph(layer, batch):
    """Penalty, log-density, entropy and KL are traced with the layer; one covariance for all states, and one per state.

    Dynamo refuses a call that it cannot trace before any code is generated, so the backend generates none.
    """
    chol = torch.eye(2).expand(*batch, 2, 2)
    old = FullGaussian(torch.zeros(4, 2), chol)
    actions = torch.linspace(-1.0, 1.0, 8).reshape(4, 2)

    def loss(mean, chol):
        predicted = FullGaussian(mean, chol)
        projected = layer(predicted, old)
        surrogate = log_prob(projected, actions) + entropy(projected)
        return (layer.penalty(predicted, projected) + kl(predicted, old) - surrogate).mean()

    torch._dynamo.reset()
    compiled = torch.compile(loss, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(old.mean + 1.0, 1.2 * chol), loss(old.mean + 1.0, 1.2 * chol))


def test_a_loss_around_a_product_is_one_graph():
    layer, classes = JointKLProjection(0.05), torch.tensor([0, 1, 2, 0])
    old = Product((DiagGaussian(torch.zeros(4, 2), torch.ones(4, 2)), Categorical(torch.zeros(4, 3))))

    def loss(mean, logits):
        predicted = Product((DiagGaussian(mean, old.parts[0].std), Categorical(logits)))
        projected = layer(predicted, old)
        return (layer.penalty(predicted, projected) - log_prob(projected, (old.parts[0].mean, classes))).mean()

    torch._dynamo.reset()
    given = torch.ones(4, 2), torch.linspace(-1.0, 1.0, 12).reshape(4, 3)
    torch.testing.assert_close(torch.compile(loss, fullgraph=True, backend="eager")(*given), loss(*given))


@compiles
def test_layers_of_different_bounds_compile_side_by_side():
    """The second number makes PyTorch ask whether a bound varies; each is still compiled once, with its own.

    That is decided before any code is generated, so the backend generates none.
    """
    torch._dynamo.reset()
    first, second = (KLProjection(bound, bound) for bound in (1e-3, 1e-34))  # the second is below rounding
    pairs = [policies(framework, gentle_pair("diag", num, 9)) for num in (4, 7)]

    def results(one, other):
        found = []
        for predicted, old in pairs:
            for layer in (one, other):
                scale = predicted.scale.clone().requires_grad_()
                projected = layer(predicted.with_scale(scale), old)
                found.extend([*projected, *torch.autograd.grad(total(projected), scale)])
        return found

    compiled = [torch.compile(layer, fullgraph=True, backend="aot_eager") for layer in (first, second)]
    expected, found = results(first, second), results(*compiled)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)
    with torch.compiler.set_stance("fail_on_recompile"):
        results(*compiled)


@compiles
def test_two_components_compile_in_seconds():
    """As one operator: fused, they took minutes."""
    torch._dynamo.reset()
    layer = KLProjection(1e-3, 1e-3)
    predicted, old = policies(framework, gentle_pair("diag", 4, 2))
    compiled, start = torch.compile(layer, fullgraph=True), time.process_time()
    found = []
    for call in (layer, compiled):
        scale = predicted.scale.clone().requires_grad_()
        projected = call(predicted.with_scale(scale), old)
        found.append([*projected, *torch.autograd.grad(total(projected), scale)])
    assert time.process_time() - start < 40.0
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)


@compiles
def test_compiles_around_vmap_and_for_batches_of_any_size():
    torch._dynamo.reset()
    layer = KLProjection(1e-3, 1e-3)

    def each(*arrays):
        return tuple(layer(DiagGaussian(*arrays[:2]), DiagGaussian(*arrays[2:])))

    predicted, old = policies(framework, gentle_pair("diag", 4, 9))
    expected = layer(predicted, old)
    for one, other in zip(torch.compile(torch.vmap(each), fullgraph=True)(*predicted, *old), expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)
    any_size = torch.compile(layer, fullgraph=True, dynamic=True)
    any_size(predicted, old)
    with torch.compiler.set_stance("fail_on_recompile"):
        for num in (5, 9):
            predicted, old = policies(framework, gentle_pair("diag", num, 9))
            for one, other in zip(any_size(predicted, old), layer(predicted, old), strict=True):
                torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)


@compiles
def test_what_does_not_fit_is_said_while_compiling():
    torch._dynamo.reset()
    (predicted, _), (_, old) = (policies(framework, gentle_pair("diag", 4, dim)) for dim in (2, 3))
    with pytest.raises(Exception, match="old policy has 3 action dimensions, predicted has 2"):
        torch.compile(KLProjection(1e-3, 1e-3), fullgraph=True)(predicted, old)


@pytest.mark.gpu
@every_kind
@every_case
def test_cuda_agrees_with_cpu(case, kind, cuda):
    pair = gentle_pair(kind)
    predicted, old = policies(framework, pair)
    options = case.call_options(framework, pair)
    expected = case.make(framework)(predicted, old, **options)
    make = TYPES[kind]
    moved = (make(*(x.to(cuda) for x in p)) for p in (predicted, old))
    found = case.make(framework).to(cuda)(*moved, **{k: v.to(cuda) for k, v in options.items()})
    for one, other in zip(found, expected, strict=True):
        assert one.device.type == "cuda"
        torch.testing.assert_close(one.cpu(), other, rtol=1e-9, atol=1e-11)


def test_a_failed_decomposition_has_a_name(monkeypatch):
    """LAPACK's iteration need not converge; it raises an error of its own then."""

    def fail(*_, **__):
        raise np.linalg.LinAlgError("SVD did not converge")

    monkeypatch.setattr(np.linalg, "svd", fail)
    eye = torch.eye(3, dtype=torch.float64).expand(2, 3, 3)
    mean = torch.zeros(2, 3, dtype=torch.float64)
    with pytest.raises(ConvergenceError, match=r"decomposition failed.*SVD did not converge"):
        KLProjection(0.1, 10.0)(FullGaussian(mean, 1e-4 * eye), FullGaussian(mean, eye))
