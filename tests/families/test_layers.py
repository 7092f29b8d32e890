"""What the joint layer promises for every family, in PyTorch; `test_in_jax` compares JAX with it."""

import contextlib
import functools

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal

import trpl
import trpl.torch
from families.pairs import BOUND, BY_NAME, KINDS, TYPES, applicable, options, policies
from frameworks import without_numpy

every_kind = pytest.mark.parametrize("kind", KINDS, ids=str)
every_entropy = pytest.mark.parametrize("held", [None, "min_entropy", "entropy"])


@every_entropy
@every_kind
def test_on_the_bound_with_the_entropy(kind, held):
    if not applicable(kind, held):
        return
    p, q = policies(kind, torch.as_tensor)
    named = {k: torch.as_tensor(v) for k, v in options(kind, held).items()}
    projected = trpl.torch.JointKLProjection(BOUND)(p, q, **named)
    after = trpl.kl(projected, q).numpy()
    assert (after <= BOUND * (1 + 1e-8)).all()
    if held is None:
        assert_allclose(after, np.minimum(BOUND, trpl.kl(p, q).numpy()), rtol=1e-8)
    if held == "entropy":
        assert_allclose(trpl.entropy(projected).numpy(), named[held].numpy(), rtol=1e-8)
    if held == "min_entropy":
        assert (trpl.entropy(projected) >= named[held] - 1e-8).all()


@every_kind
def test_a_single_state_needs_no_batch_axis(kind):
    """It is projected as in a batch of one, with the same gradient."""
    p, q = policies(kind, torch.as_tensor)
    layer, found = trpl.torch.JointKLProjection(BOUND), []
    for rows in (slice(0, 1), 0):
        leaves = [x[rows].clone().requires_grad_() for x in kind.arrays(p)]
        projected = kind.arrays(layer(kind.unflatten(leaves), kind.unflatten([x[rows] for x in kind.arrays(q)])))
        gradients = torch.autograd.grad(sum(x.exp().sum() for x in projected), leaves)
        found.append([x.detach().squeeze() for x in (*projected, *gradients)])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)


def test_a_single_full_gaussian_far_from_the_old_one_needs_no_batch_axis():
    """So ill-conditioned that eigenvalues are needed; there was a TypeError about item assignment."""
    factor = torch.tensor([[0.1, 0.0, 0.0], [3.0, 0.4, 0.0], [2.0, 3.0, 0.3]])
    predicted, old = trpl.FullGaussian(torch.ones(3), factor), trpl.FullGaussian(torch.zeros(3), torch.eye(3))
    layer, found = trpl.torch.JointKLProjection(10.0), []
    for rows in (None, ...):
        projected = layer(*(trpl.FullGaussian(*(x[rows] for x in p)) for p in (predicted, old)))
        found.append([x.squeeze() for x in projected])
    torch.testing.assert_close(*found)


def test_a_shared_factor_in_a_product_may_have_a_bound_and_an_entropy_per_state():
    """It is broadcast; NumPy warned about views that it will make read-only."""
    means, one = torch.stack((torch.zeros(3, 2), torch.ones(3, 2))), torch.eye(2)
    layer, found = trpl.torch.JointKLProjection(torch.full((3,), BOUND)), []
    for factor in (one, one.expand(3, 2, 2)):
        old, predicted = (trpl.Product((trpl.FullGaussian(mean, factor),)) for mean in means)
        found.append(layer(predicted, old, min_entropy=2.9).arrays)
    torch.testing.assert_close(*found)


@every_kind
def test_single_precision_stays_whatever_the_default(kind):
    """Policies, gradients and KLs of a float32 policy where PyTorch's default is float64."""
    p, q = policies(kind, lambda x: torch.tensor(x, dtype=torch.float32))
    torch.set_default_dtype(torch.float64)
    try:
        for context in (contextlib.nullcontext(), without_numpy()):
            with context:
                projected = trpl.torch.JointKLProjection(BOUND)(p, q)
            assert {x.dtype for x in (*kind.arrays(projected), trpl.kl(p, q))} == {torch.float32}
    finally:
        torch.set_default_dtype(torch.float32)
    assert trpl.kl(*policies(kind, np.float32)).dtype == np.float32


@every_entropy
@every_kind
def test_gradients_by_finite_differences(kind, held):
    """To prediction, old policy, bound and entropy. States do not mix, so one batch holds all moved entries."""
    if not applicable(kind, held):
        return
    num, step = 3, 1e-5
    p, q = policies(kind, np.asarray, num=num)
    named = options(kind, held, num=num)
    inputs = [*kind.arrays(p), *kind.arrays(q), *named.values()]
    layer, size = trpl.torch.JointKLProjection(BOUND, check=False), len(kind.arrays(p))

    def project(arrays):
        given = dict(zip(named, arrays[2 * size :], strict=True))
        return kind.arrays(layer(kind.unflatten(arrays[:size]), kind.unflatten(arrays[size : 2 * size]), **given))

    leaves = [torch.tensor(x, requires_grad=True) for x in inputs]
    found = project(leaves)
    rng = np.random.default_rng(3)
    weights = [rng.normal(size=tuple(x.shape)) for x in found]
    total = sum((torch.as_tensor(w) * x).sum() for w, x in zip(weights, found, strict=True))
    gradients = [g.numpy() for g in torch.autograd.grad(total, leaves)]
    entries = [
        (i, index)
        for i, x in enumerate(inputs)
        for index in np.ndindex(x.shape[1:])
        if list(index) == sorted(index)[::-1]
    ]
    moved = [np.stack([x] * (2 * len(entries))) for x in inputs]  # each entry up, then each down
    for k, (i, index) in enumerate(entries):
        moved[i][(k, slice(None), *index)] += step
        moved[i][(k + len(entries), slice(None), *index)] -= step
    out = project([torch.as_tensor(x.reshape(-1, *x.shape[2:])) for x in moved])
    totals = sum(
        (w * x.numpy().reshape(2 * len(entries), *w.shape)).reshape(2 * len(entries), num, -1).sum(-1)
        for w, x in zip(weights, out, strict=True)
    )
    for k, (i, index) in enumerate(entries):
        expected = (totals[k] - totals[k + len(entries)]) / (2 * step)
        assert_allclose(gradients[i][(slice(None), *index)], expected, rtol=1e-5, atol=1e-7)


@every_kind
def test_inside_nothing_moves_and_twice_is_once(kind):
    p, q = policies(kind, torch.as_tensor)
    wide = trpl.torch.JointKLProjection(1e4)
    assert all(x is y for x, y in zip(kind.arrays(wide(p, q)), kind.arrays(p), strict=True))
    layer = trpl.torch.JointKLProjection(BOUND)
    once = layer(p, q)
    for x, y in zip(kind.arrays(layer(once, q)), kind.arrays(once), strict=True):
        assert_allclose(x.numpy(), y.numpy(), rtol=1e-7, atol=1e-9)


@every_kind
def test_rows_do_not_mix(kind):
    p, q = policies(kind, torch.as_tensor)
    layer = trpl.torch.JointKLProjection(BOUND)
    whole = kind.arrays(layer(p, q))
    for i in (0, 5):
        p_i, q_i = (kind.unflatten([x[i : i + 1] for x in kind.arrays(z)]) for z in (p, q))
        for x, y in zip(kind.arrays(layer(p_i, q_i)), whole, strict=True):
            assert_allclose(x.numpy(), y[i : i + 1].numpy(), rtol=1e-12, atol=1e-13)


@every_kind
def test_float32(kind):
    p, q = policies(kind, lambda x: torch.as_tensor(x, dtype=torch.float32))
    projected = trpl.torch.JointKLProjection(BOUND)(p, q)
    assert all(x.dtype == torch.float32 for x in kind.arrays(projected))
    after = trpl.kl(*(kind.unflatten([x.double() for x in kind.arrays(z)]) for z in (projected, q)))
    assert_allclose(after.numpy(), np.minimum(BOUND, trpl.kl(p, q).numpy()), rtol=1e-3)


@every_entropy
@every_kind
def test_pytorch_itself(kind, held):
    """As on a GPU, where NumPy does not compute in PyTorch's place; gradients too."""
    if not applicable(kind, held):
        return
    p, q = policies(kind, torch.as_tensor)
    named = {k: torch.as_tensor(v) for k, v in options(kind, held).items()}
    layer, num, found = trpl.torch.JointKLProjection(BOUND), len(kind.arrays(p)), []
    for context in (contextlib.nullcontext(), without_numpy()):
        with context:
            leaves = [x.clone().requires_grad_() for x in (*kind.arrays(p), *kind.arrays(q))]
            projected = kind.arrays(layer(kind.unflatten(leaves[:num]), kind.unflatten(leaves[num:]), **named))
            grads = torch.autograd.grad(sum((x * x.detach().cos()).sum() for x in projected), leaves)
            found.append(
                [x.detach().tril().numpy() if x.ndim == 3 else x.detach().numpy() for x in (*projected, *grads)]
            )
    for ours, other in zip(*found, strict=True):
        assert_allclose(ours, other, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", ["categorical", "everything"])  # one operator for all families
def test_compiled_and_mapped(name):
    kind = BY_NAME[name]
    p, q = policies(kind, torch.as_tensor)
    layer = trpl.torch.JointKLProjection(BOUND)
    expected = kind.arrays(layer(p, q))

    def projected_and_audited(p, q):
        projected = layer(p, q)
        return projected, layer.audit(p, projected, q)

    projected, audit = torch.compile(projected_and_audited, fullgraph=True, backend="aot_eager")(p, q)
    torch.testing.assert_close(audit, layer.audit(p, layer(p, q), q))
    found, num = kind.arrays(projected), len(expected)

    def one(*arrays):
        return tuple(kind.arrays(layer(kind.unflatten(arrays[:num]), kind.unflatten(arrays[num:]))))

    mapped = torch.func.vmap(one)(*kind.arrays(p), *kind.arrays(q))
    for want, *others in zip(expected, found, mapped, strict=True):
        for x in others:
            assert_allclose(np.asarray(x), want.numpy(), rtol=1e-9, atol=1e-10)


def test_a_shared_covariance_in_a_product_is_set_not_regressed():
    """As on its own: the penalty has the Gaussian's mean part alone."""
    rng = torch.Generator().manual_seed(0)
    draw = functools.partial(torch.randn, generator=rng, dtype=torch.float64)
    std = torch.full((2,), 0.5, dtype=torch.float64, requires_grad=True)
    predicted = trpl.Product((trpl.DiagGaussian(draw(5, 2), std), trpl.Categorical(draw(5, 3))))
    old = trpl.Product((trpl.DiagGaussian(draw(5, 2), torch.ones_like(std)), trpl.Categorical(draw(5, 3))))
    layer = trpl.torch.JointKLProjection(BOUND)
    projected = layer(predicted, old)
    found = layer.penalty(predicted, projected)
    (gaussian, categorical), (moved, chosen) = predicted.parts, projected.parts
    mean = ((gaussian.mean - moved.mean) / moved.std).square().sum(-1) / 2
    torch.testing.assert_close(found, (mean + trpl.kl(categorical, chosen)).detach())
    assert not found.requires_grad


@every_kind
def test_penalty_and_audit(kind):
    p, q = policies(kind, torch.as_tensor)
    layer = trpl.torch.JointKLProjection(BOUND)
    projected = layer(p, q)
    leaves = [x.clone().requires_grad_() for x in kind.arrays(p)]
    penalty = layer.penalty(kind.unflatten(leaves), projected)
    assert_allclose(penalty.detach().numpy(), trpl.kl(p, projected).numpy(), rtol=1e-10)
    assert all(g is not None for g in torch.autograd.grad(penalty.sum(), leaves))
    audit = layer.audit(p, projected, q)
    outside = trpl.kl(p, q).numpy() > BOUND
    assert_array_equal(audit.mean_projected.numpy(), outside)
    assert_allclose((audit.before.mean + audit.before.cov).numpy(), trpl.kl(p, q).numpy(), rtol=1e-12)
    s = 1.0 / (1.0 + audit.mean_multiplier.numpy())
    if len(kind.parts) == 1 and kind.name != "beta":  # logits are interpolated
        (new,), (old,), (found,) = kind.arrays(p), kind.arrays(q), kind.arrays(projected)
        between = old.numpy() + s[:, None] * (new - old).numpy()
        assert_allclose(found.numpy(), between, rtol=1e-10, atol=1e-12)


@every_kind
@pytest.mark.parametrize("single", ["predicted", "old"])
def test_one_policy_serves_a_batch(kind, single):
    """Around one old policy, or for one prediction, projection and audit are those of copies; the steps are large."""
    num, bound = 6, 0.5
    p, q = ([torch.as_tensor(x) for own in kind.draw(num, seed=seed, size=3.0) for x in own] for seed in (0, 1))
    wide = {"predicted": p, "old": q}
    wide[single] = [x[:1].expand_as(x) for x in wide[single]]
    narrow = wide | {single: [x[0] for x in wide[single]]}
    layer, found = trpl.torch.JointKLProjection(bound), []
    for given in (wide, narrow):
        predicted, old = kind.unflatten(given["predicted"]), kind.unflatten(given["old"])
        for context in (contextlib.nullcontext(), without_numpy()):
            with context:
                projected = layer(predicted, old)
                audit = layer.audit(predicted, projected, old)
            found.append([*kind.arrays(projected), audit.mean_multiplier, audit.before.mean, audit.after.mean])
    assert (found[0][-3] > 0.0).any()
    for first, *others in zip(*found, strict=True):
        for x in others:
            torch.testing.assert_close(x, first, rtol=1e-8, atol=1e-10)


def test_two_classes_have_no_gradient_on_the_bound():
    kind = BY_NAME["two-classes"]
    p, q = policies(kind, torch.as_tensor, num=50)
    leaf = p.logits.clone().requires_grad_()
    projected = trpl.torch.JointKLProjection(1e-3)(trpl.Categorical(leaf), q)
    trpl.log_prob(projected, torch.zeros(50, dtype=torch.int64)).sum().backward()
    outside = trpl.kl(p, q) > 1e-3
    assert float(leaf.grad[outside].abs().max()) < 1e-10
    assert float(leaf.grad[~outside].abs().max()) > 1e-3


def test_masked_classes_stay_masked():
    p, q = policies(BY_NAME["categorical"], torch.as_tensor)
    mask = torch.zeros(6, 5, dtype=torch.bool)
    mask[::2, 1] = mask[3, 4] = True
    p, q = (trpl.Categorical(x.logits.masked_fill(mask, -torch.inf)) for x in (p, q))
    leaf = p.logits.clone().requires_grad_()
    layer = trpl.torch.JointKLProjection(BOUND)
    projected = layer(trpl.Categorical(leaf), q)
    assert_array_equal((projected.logits == -torch.inf).numpy(), mask.numpy())
    assert_allclose(trpl.kl(projected, q).detach().numpy(), np.minimum(BOUND, trpl.kl(p, q).numpy()), rtol=1e-9)
    (
        trpl.log_prob(projected, torch.zeros(6, dtype=torch.int64)) + layer.penalty(trpl.Categorical(leaf), projected)
    ).sum().backward()
    assert torch.isfinite(leaf.grad).all()


def test_a_class_that_old_forbids_is_forbidden():
    old = torch.tensor([[0.0, 0.0, -torch.inf]], dtype=torch.float64)
    near, far = torch.tensor([[0.1, 0.0, 3.0]]).double(), torch.tensor([[4.0, 0.0, 3.0]]).double()
    layer = trpl.torch.JointKLProjection(BOUND)
    inside = layer(trpl.Categorical(near), trpl.Categorical(old)).logits
    assert_allclose(inside.numpy(), [[0.1, 0.0, -np.inf]])
    outside = layer(trpl.Categorical(far), trpl.Categorical(old))
    assert float(trpl.kl(outside, trpl.Categorical(old))) == pytest.approx(BOUND, rel=1e-9)


def test_a_bound_for_each_part():
    kind = BY_NAME["hybrid"]
    p, q = policies(kind, torch.as_tensor)
    layer = trpl.torch.JointKLProjection((0.01, 0.02))
    projected = layer(p, q)
    for part, old, bound in zip(projected.parts, q.parts, (0.01, 0.02), strict=True):
        assert_allclose(trpl.kl(part, old).numpy(), bound, rtol=1e-8)
    assert len(layer.audit(p, projected, q)) == 2
    with pytest.raises(ValueError, match="bound has 3 entries for the 2 parts"):
        layer(p, q, bound=(0.1, 0.1, 0.1))
    with pytest.raises(ValueError, match="min_entropy must be a tuple"):
        layer(p, q, min_entropy=0.3)
    with pytest.raises(ValueError, match="several bounds are for the parts of a Product"):
        layer(p.parts[0], q.parts[0])


def test_actions_of_a_product_may_lie_side_by_side():
    kind = BY_NAME["hybrid"]
    p, _ = policies(kind, torch.as_tensor)
    continuous, discrete = torch.randn(6, 2, dtype=torch.float64), torch.arange(6) % 4
    flat = torch.cat([continuous, discrete[:, None].double()], -1)
    apart = trpl.log_prob(p, (continuous, discrete))
    assert_allclose(trpl.log_prob(p, flat).numpy(), apart.numpy())
    expected = trpl.log_prob(p.parts[0], continuous) + trpl.log_prob(p.parts[1], discrete)
    assert_allclose(apart.numpy(), expected.numpy())
    with pytest.raises(ValueError, match="1 more than the parts need"):
        trpl.log_prob(p, torch.zeros(6, 4, dtype=torch.float64))


C = trpl.Categorical
BAD = [
    (C(np.zeros((3, 4))), C(np.zeros((3, 5))), "5 classes, predicted has 4"),
    (C(np.full((3, 4), np.nan)), C(np.zeros((3, 4))), r"12 entries that are NaN or \+inf"),
    (C(np.full((3, 4), -np.inf)), C(np.zeros((3, 4))), "forbids every class in 3 states"),
    (C(np.array([[0.0, -np.inf]])), C(np.zeros((1, 2))), "the same mask"),
    (trpl.Bernoulli(np.array([[np.inf]])), trpl.Bernoulli(np.zeros((1, 1))), "1 entries that are NaN or infinite"),
    (trpl.Beta(np.zeros((1, 1)), np.ones((1, 1))), trpl.Beta(*np.ones((2, 1, 1))), "must be positive"),
    (trpl.Beta(np.ones((1, 2)), np.ones((1, 1))), trpl.Beta(*np.ones((2, 1, 2))), "must have one shape"),
    (C(np.zeros((3, 4))), trpl.Bernoulli(np.zeros((3, 4))), "same structure"),
    (
        trpl.Product((C(np.zeros((3, 4))),)),
        trpl.Product((trpl.Bernoulli(np.zeros((3, 4))),)),
        "has the parts Categorical and old Bernoulli",
    ),
    (
        trpl.Product((C(np.zeros((3, 4))), C(np.zeros((2, 4))))),
        trpl.Product((C(np.zeros((3, 4))),) * 2),
        "need the same",
    ),
]


@pytest.mark.parametrize(("predicted", "old", "words"), BAD)
def test_bad_policies_are_refused_in_words(predicted, old, words):
    def as_torch(p):
        if isinstance(p, trpl.Product):
            return trpl.Product(tuple(map(as_torch, p.parts)))
        return type(p)(*map(torch.as_tensor, p))

    with pytest.raises(ValueError, match=words):
        trpl.torch.JointKLProjection(0.1)(as_torch(predicted), as_torch(old))


def test_an_entropy_out_of_reach_is_refused():
    p, q = policies(BY_NAME["categorical"], torch.as_tensor)
    with pytest.raises(ValueError, match=r"no policy within the bound .* at most"):
        trpl.torch.JointKLProjection(1e-3)(p, q, min_entropy=1.6)


@pytest.mark.parametrize(
    ("target", "words"), [([0.9, 0.2], "1 state: .* at most 0.693147"), ([0.6931, 0.0], "1 state: .* at least 0.1886")]
)
def test_an_entropy_out_of_reach_is_compared_with_its_own_state(target, words):
    """Of a uniform policy, log 2 at most, and a sharp one with entropy 0.2: only the state that cannot is meant."""
    old = trpl.Categorical(torch.tensor([[0.0, 0.0], [2.95, 0.0]], dtype=torch.float64))
    with pytest.raises(ValueError, match=words):
        trpl.torch.JointKLProjection(1e-4)(old, old, entropy=torch.tensor(target, dtype=torch.float64))


@pytest.mark.parametrize("size", [0.0, 1e-4])
def test_a_uniform_policy_may_become_sharper(size):
    """Powers of a uniform policy are uniform: of its least entropy they say nothing."""
    p, q = policies(BY_NAME["categorical"], torch.as_tensor)
    old = trpl.Categorical(size * q.logits)
    layer = trpl.torch.JointKLProjection(0.3)
    target = np.log(5.0) - 0.1
    assert_allclose(trpl.entropy(layer(p, old, entropy=target)).numpy(), target, rtol=1e-8)
    assert_allclose(trpl.entropy(layer(old, old, min_entropy=np.log(5.0))).numpy(), np.log(5.0), rtol=1e-8)


@pytest.mark.parametrize(
    ("predicted", "old"),
    [
        (C(torch.tensor([[1.0, 0.0, 0.3]])), C(torch.full((1, 3), 2.0))),
        (trpl.Bernoulli(torch.tensor([[1.0, -0.5]])), trpl.Bernoulli(torch.zeros(1, 2))),
        (trpl.Beta(torch.tensor([[2.0]]), torch.tensor([[3.0]])), trpl.Beta(torch.ones(1, 1), torch.ones(1, 1))),
    ],
    ids=["categorical", "bernoulli", "beta"],
)
def test_the_least_entropy_around_a_uniform_policy(predicted, old):
    """KL(p‖uniform) is the entropy lost, so at most ε can be lost; less was accepted and not met."""
    predicted, old = (type(p)(*(x.double() for x in p)) for p in (predicted, old))
    layer, most = trpl.torch.JointKLProjection(0.5), float(trpl.entropy(old))
    met = trpl.entropy(layer(predicted, old, entropy=most - 0.49))
    assert_allclose(met.numpy(), most - 0.49, rtol=1e-8)
    with pytest.raises(ValueError, match=f"at least {most - 0.5:.6g}"):
        layer(predicted, old, entropy=most - 0.52)


@pytest.mark.parametrize("size", [1e-2, 1e-5])
def test_nearly_uniform_policies_meet_a_smaller_entropy(size):
    """The power that sharpens them is as large as their logits are small; with two likely classes larger still."""
    layer, bound = trpl.torch.JointKLProjection(0.5), 0.5
    old = torch.tensor([[1.0, 0.0, 0.3], [-0.3, -0.7, -1.0]], dtype=torch.float64)
    predicted = torch.tensor([[1.0, 0.0, 0.3], [-0.4, 0.5, -0.2]], dtype=torch.float64)
    policies = C(size * predicted), C(size * old)
    target = np.log(3.0) - bound + 0.02
    projected = layer(*policies, entropy=target)
    assert_allclose(trpl.entropy(projected).numpy(), target, rtol=1e-8)
    assert float(trpl.kl(projected, policies[1]).max()) <= bound * (1.0 + 1e-8)


@pytest.mark.parametrize("target", [{"min_entropy": 0.2}, {"entropy": 0.9}])
def test_a_single_state_with_an_entropy_target(target):
    """The search for the reachable entropies takes numbers, too, that NumPy cannot assign to."""
    rng = np.random.default_rng(0)
    layer = trpl.torch.JointKLProjection(0.02)
    for _ in range(20):
        p, q = torch.as_tensor(2.0 * rng.normal(size=(2, 3)))
        try:
            found = layer(C(p[None]), C(q[None]), **target).logits[0]
        except ValueError as error:
            with pytest.raises(ValueError, match=str(error)[:40]):
                layer(C(p), C(q), **target)
        else:
            assert_allclose(layer(C(p), C(q), **target).logits.numpy(), found.numpy(), rtol=1e-12)


def test_every_family_is_in_the_list():
    """A new one joins `families.pairs.KINDS`; a sparse categorical has tests of its own."""
    kinds = {kind for one in KINDS for kind in one.kinds}
    listed = {TYPES[kind].__name__ for kind in kinds} | {"Product", "SparseCategorical"}
    assert set(trpl.families.known_policies()) <= listed


@every_kind
def test_edges(kind):
    """Gradients are finite where prediction and old policy are equal and where a state is on its bound.

    A batch may be empty, and one old policy may serve all states.
    """
    p, q = policies(kind, torch.as_tensor)
    layer = trpl.torch.JointKLProjection(BOUND)
    on_the_bound = layer(p, q)
    for start in (q, on_the_bound):
        leaves = [x.clone().requires_grad_() for x in kind.arrays(start)]
        projected = kind.arrays(layer(kind.unflatten(leaves), q))
        for g in torch.autograd.grad(sum(x.sum() for x in projected), leaves):
            assert torch.isfinite(g).all()
    empty = kind.unflatten([x[:0] for x in kind.arrays(p)])
    assert all(x.shape[0] == 0 for x in kind.arrays(layer(empty, empty)))
    alone = kind.unflatten([x[0] for x in kind.arrays(q)])
    for x, y in zip(kind.arrays(layer(p, alone)), kind.arrays(p), strict=True):
        assert x.shape == y.shape
    assert float(trpl.kl(layer(p, alone), alone).max()) <= BOUND * (1 + 1e-8)


D = torch.distributions
DISTRIBUTIONS = [
    lambda x: D.Categorical(logits=x),
    lambda x: D.OneHotCategorical(logits=x),
    lambda x: D.OneHotCategoricalStraightThrough(logits=x),
    lambda x: D.Independent(D.Bernoulli(logits=x), 1),
    lambda x: D.Independent(D.Beta(x.exp(), (-x).exp()), 1),
    lambda x: D.Independent(D.Categorical(logits=x.unflatten(-1, (2, 2))), 1),
]


@pytest.mark.parametrize("make", DISTRIBUTIONS)
def test_distributions_in_and_out(make):
    rng = torch.Generator().manual_seed(0)
    p, q = (make(torch.randn(5, 4, generator=rng, dtype=torch.float64)) for _ in range(2))
    projected = trpl.torch.JointKLProjection(0.01)(p, q)
    assert type(projected) is type(p)
    kl = D.kl_divergence(projected, q) if not isinstance(p, D.OneHotCategorical) else None
    if kl is not None:
        assert_allclose(kl.numpy(), np.minimum(0.01, D.kl_divergence(p, q).numpy()), rtol=1e-8)


@pytest.mark.parametrize("name", ["OneHotCategorical", "MaskedCategorical", "MaskedOneHotCategorical"])
def test_distributions_of_torchrl(name):
    kind = getattr(pytest.importorskip("torchrl.modules.distributions"), name)
    mask = torch.tensor([True, False, True, True])
    options = {"mask": mask.expand(5, 4)} if "Masked" in name else {}
    rng = torch.Generator().manual_seed(0)
    logits = [torch.randn(5, 4, generator=rng, dtype=torch.float64) for _ in range(2)]
    layer = trpl.torch.JointKLProjection(0.01)
    projected = layer(*(kind(logits=x, **options) for x in logits))
    assert type(projected) is kind
    masked = [x.masked_fill(~mask, -torch.inf) if options else x for x in logits]
    expected = layer(*(trpl.Categorical(x) for x in masked))
    actions = torch.nn.functional.one_hot(torch.tensor([0, 2, 3, 0, 2]), 4)
    index = actions if "OneHot" in name else actions.argmax(-1)
    assert_allclose(projected.log_prob(index).numpy(), trpl.log_prob(expected, actions.argmax(-1)).numpy(), rtol=1e-9)
    if name == "MaskedCategorical":
        with pytest.raises(ValueError, match="boolean mask"):
            layer(*(kind(logits=x, indices=torch.tensor([[0, 2]] * 5)) for x in logits))


def test_one_hot_ordinals_of_torchrl_stay_one_hot():
    kind = pytest.importorskip("torchrl.modules.distributions").OneHotOrdinal
    rng = torch.Generator().manual_seed(0)
    p, q = (kind(scores=torch.randn(5, 4, generator=rng, dtype=torch.float64)) for _ in range(2))
    layer, action = trpl.torch.JointKLProjection(0.01), torch.tensor([0, 2, 3, 0, 2])
    expected = trpl.log_prob(layer(*(trpl.Categorical(x.logits) for x in (p, q))), action)
    assert_allclose(layer(p, q).log_prob(torch.nn.functional.one_hot(action, 4)), expected, rtol=1e-9)


@pytest.mark.parametrize("name", ["categorical", "bernoulli", "beta"])
def test_log_prob_and_entropy_are_those_of_torch(name):
    from trpl.torch.distributions import to_distribution

    p, q = policies(BY_NAME[name], torch.as_tensor)
    known, other = to_distribution(p), to_distribution(q)
    x = known.sample()
    x = x.clamp(1e-6, 1 - 1e-6) if name == "beta" else x
    assert_allclose(trpl.log_prob(p, x).numpy(), known.log_prob(x).numpy(), rtol=1e-9)
    assert_allclose(trpl.entropy(p).numpy(), known.entropy().numpy(), rtol=1e-9)
    assert_allclose(trpl.kl(p, q).numpy(), D.kl_divergence(known, other).numpy(), rtol=1e-9)
