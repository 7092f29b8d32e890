"""KLs, entropies and projections of every family once more: textbook formulas and a general optimiser, in NumPy."""

from __future__ import annotations

import numpy as np
from scipy.optimize import minimize
from scipy.special import betaln, digamma, expit, logsumexp

Arrays = tuple[np.ndarray, ...]
"""A policy of one state: logits, or α and β, or mean and standard deviation."""


def normalised(logits: np.ndarray) -> np.ndarray:
    return logits - logsumexp(logits, axis=-1, keepdims=True)


def kl(kind: str, p: Arrays, q: Arrays) -> float:
    """KL(p‖q) of one state."""
    if kind == "categorical":
        log_p, log_q = normalised(p[0]), normalised(q[0])
        here = log_p > -np.inf
        return float(np.sum(np.exp(log_p[here]) * (log_p[here] - log_q[here])))
    if kind == "bernoulli":
        a, b = expit(p[0]), expit(q[0])
        return float(np.sum(a * (np.log(a) - np.log(b)) + (1 - a) * (np.log1p(-a) - np.log1p(-b))))
    if kind == "beta":
        (a, b), (c, d) = p, q
        change = (a - c) * digamma(a) + (b - d) * digamma(b) + (c + d - a - b) * digamma(a + b)
        return float(np.sum(betaln(c, d) - betaln(a, b) + change))
    assert kind == "diag"
    (m, s), (n, t) = p, q
    return float(np.sum(0.5 * ((s / t) ** 2 - 1 + ((m - n) / t) ** 2) + np.log(t / s)))


def entropy(kind: str, p: Arrays) -> float:
    """H(p) of one state."""
    if kind == "categorical":
        log_p = normalised(p[0])
        log_p = log_p[log_p > -np.inf]
        return float(-np.sum(np.exp(log_p) * log_p))
    if kind == "bernoulli":
        a = expit(p[0])
        return float(-np.sum(a * np.log(a) + (1 - a) * np.log1p(-a)))
    if kind == "beta":
        a, b = p
        own = betaln(a, b) - (a - 1) * digamma(a) - (b - 1) * digamma(b) + (a + b - 2) * digamma(a + b)
        return float(np.sum(own))
    assert kind == "diag"
    return float(np.sum(np.log(p[1]) + 0.5 * np.log(2 * np.pi * np.e)))


POSITIVE = {"beta": (True, True), "diag": (False, True), "categorical": (False,), "bernoulli": (False,)}
"""Which arrays of a family are positive: the optimiser moves their logarithms."""


def project(
    kinds: list[str], p: list[Arrays], q: list[Arrays], bound: float, min_entropy: float | None = None
) -> list[Arrays]:
    """argmin KL(·‖p) subject to KL(·‖q) ≤ bound and the entropy, of one state, by SLSQP from the old policy."""
    shapes = [[x.shape for x in part] for part in q]
    positive = [flag for kind in kinds for flag in POSITIVE[kind]]

    def pack(policy: list[Arrays]) -> np.ndarray:
        flat = [x for part in policy for x in part]
        return np.concatenate([np.log(x) if flag else x for x, flag in zip(flat, positive, strict=True)])

    def unpack(z: np.ndarray) -> list[Arrays]:
        flags, found = iter(positive), []
        for part in shapes:
            arrays = []
            for shape in part:
                own, z = z[: shape[0]], z[shape[0] :]
                arrays.append(np.exp(own) if next(flags) else own)
            found.append(tuple(arrays))
        return found

    def total(function, z: np.ndarray, *others) -> float:
        return sum(function(kind, *parts) for kind, *parts in zip(kinds, unpack(z), *others, strict=True))

    constraints = [{"type": "ineq", "fun": lambda z: bound - total(kl, z, q)}]
    if min_entropy is not None:
        constraints.append({"type": "ineq", "fun": lambda z: total(entropy, z) - min_entropy})
    start = 0.9 * pack(q) + 0.1 * pack(p)
    options = {"maxiter": 1000, "ftol": 1e-14}
    found = minimize(lambda z: total(kl, z, p), start, method="SLSQP", constraints=constraints, options=options)
    return unpack(found.x)
