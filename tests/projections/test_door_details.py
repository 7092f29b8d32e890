"""Details of the door that mutation testing found unwatched: what messages say, and tracing of one part alone."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from cases import CASES, SEPARATE
from frameworks import Jax, Torch, policies
from generators import gentle_pair
from trpl import DiagGaussian

KL, JOINT = CASES[0], next(case for case in CASES if case.joint)


def test_the_message_shows_the_bad_bound_and_not_a_good_one():
    predicted, old = policies(Torch(), gentle_pair("diag"))
    bounds = torch.tensor([1.0, 2.0, -3.0, 4.0, 5.0, 6.0], dtype=torch.float64)
    with pytest.raises(ValueError, match=r"cov_bound must be positive and finite as float64; got -3 among 6 values"):
        KL.make(Torch())(predicted, old, cov_bound=bounds)


@pytest.mark.parametrize("case", [KL, JOINT], ids=str)
def test_a_penalty_calls_its_second_policy_projected(case):
    predicted, _ = policies(Torch(), gentle_pair("diag"))
    narrow = DiagGaussian(*(x[:, :1] for x in predicted))
    penalty = case.make(Torch()).penalty
    with pytest.raises(ValueError, match="projected policy has 1 action dimensions, predicted has"):
        penalty(predicted, narrow)
    with pytest.raises(ValueError, match=r"predicted has \(6,\), projected has \(4,\)"):
        penalty(predicted, DiagGaussian(*(x[:4] for x in predicted)))
    with pytest.raises(ValueError, match="predicted is float64 and projected float32"):
        penalty(predicted, DiagGaussian(*(x.float() for x in predicted)))


def test_the_message_counts_the_states_out_of_reach_and_shows_their_tightest_limit():
    old = DiagGaussian(torch.zeros(3, 1), torch.tensor([[1.0], [2.0], [4.0]]))
    present = 0.5 * np.log(2 * np.pi * np.e) + np.log([1.0, 2.0, 4.0])
    layer = JOINT.make(Torch(), 1e-6)  # entropies within 1e-3 of 1.4189, 2.1121, 2.8052
    target = torch.tensor([present[0] + 1.0, present[1] + 1.0, present[2]], dtype=torch.float32)
    with pytest.raises(ValueError, match=r"in 2 states: the entropy there can be at most 1\.419"):
        layer(old, old, min_entropy=target)
    target = torch.tensor([present[0] - 1.0, present[1] - 1.0, present[2]], dtype=torch.float32)
    with pytest.raises(ValueError, match=r"in 2 states: the entropy there can be at least 2\.111"):
        layer(old, old, entropy=target)


@pytest.mark.parametrize("case", SEPARATE, ids=str)
def test_an_audit_refuses_what_the_projection_refuses(case):
    predicted, old = policies(Torch(), gentle_pair("diag"))
    for name in ("mean_bound", "cov_bound"):
        with pytest.raises(ValueError, match=f"{name} must be positive"):
            case.make(Torch()).audit(predicted, predicted, old, **{name: -1.0})


def test_numpy_arrays_are_named_in_the_message():
    one, _ = policies(Torch(), gentle_pair("diag"))
    other = DiagGaussian(*(x.numpy() for x in one))
    with pytest.raises(ValueError, match="PyTorch arrays and old NumPy arrays"):
        KL.make(Torch())(one, other)


@pytest.mark.usefixtures("x64")
def test_any_part_alone_may_be_traced():
    """A constant beside a traced part has values; the pair as a whole has none."""
    predicted, old = policies(Jax(), gentle_pair("diag"))
    for case, options in ((KL, {}), (JOINT, {"min_entropy": -1.0})):
        layer = case.make(Jax())
        expected = layer(predicted, old, **options)
        for i, name in enumerate(("mean", "std")):
            for which in (0, 1):

                def call(x, which=which, name=name, layer=layer, options=options):
                    pair = [predicted, old]
                    pair[which] = pair[which]._replace(**{name: x})
                    return layer(*pair, **options)

                found = jax.jit(call)((predicted, old)[which][i])
                assert all(jnp.allclose(a, b, rtol=1e-9) for a, b in zip(found, expected, strict=True))


def test_one_old_policy_serves_a_batch():
    predicted, old = policies(Torch(), gentle_pair("diag"))
    one = DiagGaussian(*(x[2] for x in old))
    many = DiagGaussian(*(x[2].expand_as(x) for x in old))
    for found, expected in zip(KL.make(Torch())(predicted, one), KL.make(Torch())(predicted, many), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=0.0)
    two_axes = DiagGaussian(*(torch.stack([x, 2.0 * x]) for x in predicted))
    found = KL.make(Torch())(two_axes, old)
    for i in (0, 1):
        expected = KL.make(Torch())(DiagGaussian(*(x[i] for x in two_axes)), old)
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one[i], other, rtol=1e-12, atol=0.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_bounds_of_the_other_type_become_the_policys(dtype):
    predicted, old = policies(Torch(), gentle_pair("diag"), str(dtype).removeprefix("torch."))
    other = torch.float64 if dtype is torch.float32 else torch.float32
    bound = torch.full((len(predicted.mean),), 0.25, dtype=other)
    found = KL.make(Torch())(predicted, old, mean_bound=bound, cov_bound=bound)
    expected = KL.make(Torch())(predicted, old, mean_bound=bound.to(dtype), cov_bound=bound.to(dtype))
    assert found.mean.dtype == found.std.dtype == dtype
    assert all(torch.equal(one, two) for one, two in zip(found, expected, strict=True))


def test_numbers_beyond_the_largest_float_are_refused():
    predicted, old = policies(Torch(), gentle_pair("diag"), "float32")
    with pytest.raises(ValueError, match="mean_bound must be positive and finite as float32; got 1e"):
        KL.make(Torch(), 1e39)(predicted, old)
    for target in (1e39, -1e39):
        with pytest.raises(ValueError, match="no policy has an entropy of"):
            KL.make(Torch())(predicted, old, entropy=target)


def test_arrays_of_two_kinds_and_scales_without_axes_are_refused():
    predicted, old = policies(Torch(), gentle_pair("diag"))
    with pytest.raises(ValueError, match=r"predicted\.mean is a PyTorch array and predicted\.std a NumPy array"):
        KL.make(Torch())(predicted.with_scale(predicted.scale.numpy()), old)
    with pytest.raises(ValueError, match="needs 1 axis or more"):
        KL.make(Torch())(predicted.with_scale(predicted.scale[0, 0]), old)
    with pytest.raises(ValueError, match="mean_bound is a JAX array and the policy's are PyTorch arrays"):
        KL.make(Torch())(predicted, old, mean_bound=jnp.asarray(0.1))
