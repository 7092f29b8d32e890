"""One batch of hard pairs through one layer in one framework, with gradients: what came out, row by row."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import hard_gaussians
import jax
import measuring
import numpy as np
import torch

from cases import Case, by_name
from frameworks import QUICK, TYPES, as_pair, policies
from generators import HardPairs, Pair
from trpl import ConvergenceError
from trpl.engines import NUMPY
from trpl.families import family_of
from trpl.projections.joint_kl.solution import entropy_range

NAMED = (ValueError, ConvergenceError)
RESOLVED = 1e-6  # a bound is resolved where rounding of the result changes its distance by less than this share of it
EPS = {"float64": 2.0**-52, "float32": 2.0**-23}


class Setting(NamedTuple):
    """What one batch is about; `control` is the entropy on top of a separate projection."""

    case: Case
    kind: str
    framework: str
    dtype: str
    dim: int
    control: str | None = None  # "min_entropy" or "entropy", with "first" after a blank if it comes first
    number: bool = False  # one bound for all rows, given as a Python number, not an array

    def __str__(self) -> str:
        number = "number" if self.number else None
        words = (self.case.name, self.kind, self.framework, self.dtype, f"d={self.dim}", self.control, number)
        return " ".join(w for w in words if w)


class Rows(NamedTuple):
    """Per row: the outcome, and by how much each promise was missed, relative to its bound."""

    refused: np.ndarray  # not finite, and a call that looks says so by a named error
    silent: np.ndarray  # not finite, and nobody says so
    bad_gradient: np.ndarray  # finite, with a gradient that is not
    moved: np.ndarray  # the projection had to do something
    violation: np.ndarray  # (distance − ε)/ε, where positive
    shortfall: np.ndarray  # (ε − distance)/ε where it was clearly outside, |change|/ε where inside; if ε is resolved
    allowed: np.ndarray  # what rounding allows, relative to ε
    entropy_error: np.ndarray
    errors: tuple[str, ...]  # kinds of errors met


def options_for(setting: Setting, hard: HardPairs, seed: list[int]) -> dict[str, np.ndarray]:
    """Bounds for each row, and the entropy that is asked for."""
    case, pair = setting.case, hard.pair
    rng = np.random.default_rng([*seed, 1])
    if not case.joint:
        named = {"mean_bound": hard.mean_bound, "cov_bound": hard.cov_bound}
        if setting.control:
            wanted = measuring.entropy(pair) + rng.normal(size=hard.mean_bound.shape) * rng.choice([1e-9, 0.1, 10.0])
            named[setting.control.split()[0]] = wanted
        return named
    named = {"bound": hard.cov_bound}
    if case.entropy:
        least, greatest = entropy_range(NUMPY, hard.cov_bound.astype(np.float64), pair.dim)
        share = rng.uniform(-0.99, 0.99, size=hard.cov_bound.shape)
        least = np.maximum(least, -10.0 * pair.dim)  # a standard deviation of exp(−bound) is no number
        share = np.where(rng.random(share.shape) < 0.1, 0.0, share)
        old = measuring.entropy(pair._replace(scale=pair.old_scale))
        named[case.entropy] = old + share * np.where(share > 0.0, greatest, -least)
    return named


def draw(setting: Setting, num: int, seed: list[int]) -> tuple[Pair, dict[str, np.ndarray]]:
    """Pairs and options as the layer gets them, rounded to its dtype; some bounds are hit to the last digits."""
    hard = hard_gaussians.hard_pairs(setting.kind, num, setting.dim, seed=[*seed, 0])
    pair = hard.pair.astype(setting.dtype)
    rng = np.random.default_rng([*seed, 2])
    exactly = measuring.distances(setting.case.metric, pair.astype(np.float64))
    low, high = hard_gaussians.BOUNDS

    def sometimes(bound: np.ndarray, distance: np.ndarray) -> np.ndarray:
        edge = (rng.random(num) < 0.05) & (distance > low) & (distance < high)
        return np.where(edge, distance * (1.0 + rng.integers(-4, 5, size=num) * EPS[setting.dtype]), bound)

    total = exactly.cov + (exactly.mean if setting.case.joint else 0.0)
    mean_bound, cov_bound = sometimes(hard.mean_bound, exactly.mean), sometimes(hard.cov_bound, total)
    if setting.number:
        mean_bound, cov_bound = (np.full_like(bound, bound[0]) for bound in (mean_bound, cov_bound))
    hard = HardPairs(pair, mean_bound, cov_bound)
    return pair, {k: v.astype(setting.dtype) for k, v in options_for(setting, hard, seed).items()}


def given(setting: Setting, options: dict[str, np.ndarray]) -> tuple[dict[str, float], dict[str, Any]]:
    """Numbers, and arrays of the framework."""
    numbers = {k: float(v[0]) for k, v in options.items() if setting.number and k.endswith("bound")}
    array = by_name(setting.framework).array
    return numbers, {k: array(v) for k, v in options.items() if k not in numbers}


def layer_for(setting: Setting, *, check: bool) -> Any:
    first = {"entropy_first": True} if setting.control and setting.control.endswith("first") else {}
    return setting.case.make(by_name(setting.framework), check=check, **first)


@cache
def _compiled():
    def total(leaves, layer, weights):
        predicted, old, options = leaves
        projected = layer(predicted, old, **options)
        return sum((w * x).sum() for w, x in zip(weights, projected, strict=True)), projected

    return jax.jit(jax.grad(total, has_aux=True), compiler_options=QUICK)


def value_and_gradients(setting: Setting, pair: Pair, options: dict, weights: tuple, *, check: bool):
    """The projected policy and the gradients of a random linear function of it, all as NumPy arrays."""
    framework, layer = by_name(setting.framework), layer_for(setting, check=check)
    predicted, old = policies(framework, pair, setting.dtype)
    numbers, options = given(setting, options)
    weights = tuple(framework.array(w, setting.dtype) for w in weights)
    if setting.framework == "jax":
        (p, q, bounds), projected = _compiled()((predicted, old, options), layer, weights)
        found = [*p, *q, *bounds.values()]
    else:
        leaves = [x.requires_grad_() for x in (*predicted, *old, *options.values())]
        make = TYPES[pair.kind]
        named = dict(zip(options, leaves[4:], strict=True))
        projected = layer(make(*leaves[:2]), make(*leaves[2:4]), **named, **numbers)
        total = sum((w * x).sum() for w, x in zip(weights, projected, strict=True))
        found = [g for g in torch.autograd.grad(total, leaves, allow_unused=True) if g is not None]
    return as_pair(framework, projected, pair), [framework.numpy(g) for g in found]


def named_error(setting: Setting, pair: Pair, options: dict) -> str | None:
    """The error by which an eager call with its checks on refuses these rows, if it is one that users can catch."""
    framework = by_name(setting.framework)
    predicted, old = policies(framework, pair, setting.dtype)
    numbers, arrays = given(setting, options)
    try:
        layer_for(setting, check=True)(predicted, old, **numbers, **arrays)
    except NAMED as error:
        return f"{type(error).__name__}: {str(error).split(':')[0]}"
    return None


def error_of_result(setting: Setting, result: Pair) -> str | None:
    """The error by which a layer with its checks on would not hand on what this one has handed on."""
    try:
        policy = policies(by_name(setting.framework), result, setting.dtype)[0]
        family_of(policy).accept(NUMPY, [np.asarray(x) for x in policy])
    except NAMED as error:
        return f"{type(error).__name__}: {str(error).split(':')[0]}"
    return None


def _finite(arrays: list[np.ndarray], num: int) -> np.ndarray:
    good = np.ones(num, dtype=bool)
    for x in arrays:
        good &= np.isfinite(x).reshape(num, x.size // max(num, 1)).all(axis=1)
    return good


def run(setting: Setting, pair: Pair, options: dict[str, np.ndarray], *, seed: list[int]) -> Rows:
    """One batch through the layer, and everything that was promised looked at."""
    num = len(pair.mean)
    rng = np.random.default_rng([*seed, 3])
    weights = tuple(rng.normal(size=x.shape) for x in (pair.mean, pair.scale))
    result, gradients = value_and_gradients(setting, pair, options, weights, check=False)
    diag = result.scale if pair.kind == "diag" else np.diagonal(result.scale, axis1=-2, axis2=-1)
    finite = _finite([result.mean, result.scale], num) & (diag > 0.0).all(axis=-1)
    refused, errors = np.zeros(num, dtype=bool), set()
    for i in np.flatnonzero(~finite):
        message = named_error(setting, pair.rows([i]), {k: v[[i]] for k, v in options.items()})
        message = message or error_of_result(setting, result.rows([i]))  # alone it may go another way
        refused[i] = message is not None
        errors |= {message} - {None}
    bad_gradient = finite & ~_finite(gradients, num)
    measured = Rows(
        refused, ~finite & ~refused, bad_gradient, *(np.zeros(num) for _ in range(5)), tuple(sorted(errors))
    )
    keep = np.flatnonzero(finite)
    if not keep.size:
        return measured
    found = judge(setting, pair.rows(keep), result.rows(keep), {k: v[keep] for k, v in options.items()})
    for name, value in found.items():
        getattr(measured, name)[keep] = value
    return measured


def judge(setting: Setting, predicted: Pair, projected: Pair, options: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Violations and shortfalls relative to the bound, and what rounding allows of them."""
    case, eps = setting.case, EPS[setting.dtype]
    before, after = measuring.extended(predicted), measuring.extended(projected)
    start, end = (measuring.distances(case.metric, x) for x in (before, after))
    start_limit = measuring.limits(case.metric, predicted, start, eps=eps)
    end_limit = measuring.limits(case.metric, projected, end, eps=eps)
    if case.joint:
        checks = [(sum(start), sum(start_limit), sum(end), sum(end_limit), options["bound"])]
    else:
        bounds = options["mean_bound"], options["cov_bound"]
        checks = list(zip(start, start_limit, end, end_limit, bounds, strict=True))
        if setting.control:  # what comes first of entropy and bound is undone by what comes last
            checks = checks if setting.control.endswith("first") else checks[:1]
    num = len(predicted.mean)
    found = {name: np.zeros(num) for name in ("moved", "violation", "shortfall", "allowed", "entropy_error")}
    for before_it, doubt, after_it, limit, bound in checks:
        bound = bound.astype(np.longdouble)
        excess = ((after_it - bound) / bound).astype(np.float64)
        allowed = (limit / bound).astype(np.float64)
        outside = before_it > bound
        found["moved"] = np.maximum(found["moved"], outside)
        worse = np.maximum(excess - allowed, 0.0) >= np.maximum(found["violation"] - found["allowed"], 0.0)
        found["allowed"] = np.where(worse, allowed, found["allowed"])
        found["violation"] = np.where(worse, np.maximum(excess, 0.0), found["violation"])
        if case.entropy is None and not setting.control:
            inside = np.where(before_it < bound - doubt, abs(after_it - before_it) / bound, 0.0)
            short = np.where(before_it > bound + doubt, np.maximum(-excess, 0.0), inside)
            found["shortfall"] = np.maximum(found["shortfall"], np.where(allowed <= RESOLVED, short, 0.0))
    target = next((v for k, v in options.items() if "entropy" in k), None)
    if target is not None and not (setting.control or "").endswith("first"):
        have = measuring.entropy(after)
        error = have - target
        name = case.entropy or setting.control
        error = abs(error) if name == "entropy" else np.maximum(-error, 0.0)
        found["entropy_error"] = (error / np.maximum(1.0, abs(target))).astype(np.float64)
    return found
