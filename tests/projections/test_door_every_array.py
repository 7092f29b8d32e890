"""One bad number in any array of either policy is refused in words that name the array; good ones pass."""

import numpy as np
import pytest
import torch

from cases import KINDS
from frameworks import TYPES, without_numpy
from trpl import ConvergenceError
from trpl.engines import NUMPY, torch_engine
from trpl.families import family_of
from trpl.torch import KLProjection

ARRAYS = ["predicted.mean", "predicted.scale", "old.mean", "old.scale"]
SHAPES = [(3, 2), (1, 2), (2, 1), (1,)]
"""One state, one dimension and both: lengths of 1 that are not lengths of 0."""
every_kind = pytest.mark.parametrize("kind", KINDS)
every_shape = pytest.mark.parametrize("shape", SHAPES, ids=str)


def arrays(kind: str, shape: tuple[int, ...]) -> list[np.ndarray]:
    """Mean, scale, old mean and old scale, far from each other."""
    scale = np.broadcast_to(np.eye(shape[-1]), (*shape, shape[-1])).copy() if kind == "full" else np.ones(shape)
    return [np.ones(shape), 2.0 * scale, np.zeros(shape), 0.5 * scale]


def project(kind: str, given: list[np.ndarray], itself: bool):
    tensors = [torch.tensor(x) for x in given]
    if itself:
        with without_numpy():
            return KLProjection(0.03, 0.01)(TYPES[kind](*tensors[:2]), TYPES[kind](*tensors[2:]))
    return KLProjection(0.03, 0.01)(TYPES[kind](*tensors[:2]), TYPES[kind](*tensors[2:]))


@every_kind
@every_shape
@pytest.mark.parametrize("place", range(4), ids=ARRAYS)
def test_one_bad_number(kind, shape, place):
    named = ARRAYS[place].replace("scale", "chol" if kind == "full" else "std")
    for itself in (False, True):
        project(kind, arrays(kind, shape), itself)
        for value in (np.nan, np.inf, -np.inf) + (() if place % 2 == 0 else (0.0, -1.0)):
            given = arrays(kind, shape)
            given[place][(-1,) * given[place].ndim] = value
            with pytest.raises(ValueError, match=named.replace(".", r"\.")) as caught:
                project(kind, given, itself)
            words = "finite" if not np.isfinite(value) else "positive"
            assert words in str(caught.value), (value, str(caught.value))
            if words == "positive":
                assert f"the smallest entry is {value:g}" in str(caught.value)


@pytest.mark.parametrize("place", [1, 3])
def test_an_entry_above_the_diagonal(place):
    for itself in (False, True):
        given = arrays("full", (3, 2))
        given[place][1, 0, 1] = 1e-12
        with pytest.raises(ValueError, match=rf"{'predicted' if place == 1 else 'old'}\.chol must be lower triangular"):
            project("full", given, itself)


@every_kind
@pytest.mark.parametrize("shape", [(0, 2), (3, 0, 2)], ids=str)
def test_no_states(kind, shape):
    for itself in (False, True):
        assert [tuple(x.shape) for x in project(kind, arrays(kind, shape), itself)] == [
            shape,
            (*shape, 2) if kind == "full" else shape,
        ]


@every_kind
@every_shape
def test_a_solution_that_is_none_is_refused(kind, shape):
    """Not finite, or a scale that is not positive, in any of the two arrays, or in the only one that moved."""
    mean, scale, *_ = arrays(kind, shape)
    family = family_of(TYPES[kind](mean, scale))
    for e, make in ((NUMPY, np.asarray), (torch_engine(), torch.as_tensor)):
        for good in ((mean, scale), (None, scale), (mean, None), (None, None)):
            family.accept(e, [None if x is None else make(x) for x in good])
        for place, value in ((0, np.nan), (0, np.inf), (1, np.nan), (1, np.inf), (1, 0.0), (1, -1.0)):
            bad = [mean.copy(), scale.copy()]
            bad[place][(-1,) * bad[place].ndim] = value
            for given in (bad, [bad[0] if place == 0 else None, bad[1] if place == 1 else None]):
                with pytest.raises(ConvergenceError, match="float64"):
                    family.accept(e, [None if x is None else make(x) for x in given])
