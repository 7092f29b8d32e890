"""The maths with the shapes in its annotations checked at run time: run as a script, in a process of its own.

`jaxtyping` must be loaded before `trpl`, whose aliases are `Any` otherwise. Every function of the modules below is
wrapped, wherever it was imported to; then each projection runs forward and backward on NumPy arrays and tensors.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import sys
import types
from typing import Any
from unittest import mock

import jaxtyping
from beartype import beartype

CHECKED = ("trpl.linalg", "trpl.roots", "trpl.gaussians", "trpl.projections", "trpl.families")


def modules() -> list[types.ModuleType]:
    """The modules of the maths."""
    found = []
    for name in CHECKED:
        module = importlib.import_module(name)
        found.append(module)
        packages = pkgutil.walk_packages(getattr(module, "__path__", []), f"{name}.")
        found.extend(importlib.import_module(item.name) for item in packages)
    return found


def hints(function: types.FunctionType, module: types.ModuleType) -> dict[str, Any]:
    """The annotations as types; what only a static checker knows is `Any`."""
    import trpl.types

    names = {
        **vars(trpl.types),
        **vars(module),
        **dict.fromkeys(("Engine", "Family", "Region", "Gaussian", "Policy", "P", "Q"), Any),
    }
    found = {}
    for name, text in function.__annotations__.items():
        try:
            found[name] = eval(text, names) if isinstance(text, str) else text
        except (NameError, TypeError, SyntaxError):  # `Gaussian[A]`, `*_Fields`
            found[name] = Any
    return found


def check_everything() -> int:
    """Wrap every function, in every module that has imported it."""
    wrapped = {}
    for module in modules():
        for value in list(vars(module).values()):
            if inspect.isfunction(value) and value.__module__ == module.__name__:
                value.__annotations__ = hints(value, module)
                wrapped[value] = jaxtyping.jaxtyped(typechecker=beartype)(value)
    for module in [m for n, m in sys.modules.items() if n.startswith("trpl.")]:
        for name, value in list(vars(module).items()):
            if inspect.isfunction(value) and value in wrapped:
                setattr(module, name, wrapped[value])
    return len(wrapped)


def main() -> None:
    """Run each projection, and each distance; then a wrong shape, which must be noticed."""
    import numpy as np
    import torch

    import trpl.torch
    from trpl import DiagGaussian, FullGaussian, engines
    from trpl.projections.kl import diagonal

    num = check_everything()
    rng = np.random.default_rng(0)
    a = rng.normal(size=(2, 5, 3, 3))
    scales = {
        DiagGaussian: rng.uniform(0.3, 1.3, size=(2, 5, 3)),
        FullGaussian: np.linalg.cholesky(a @ a.swapaxes(-1, -2) + np.eye(3)),
    }
    means = rng.normal(size=(2, 5, 3))
    layers = [
        *(trpl.torch.KLProjection(0.03, bound) for bound in (1e-3, 0.1, 5.0)),
        *(trpl.torch.WassersteinProjection(0.03, 0.01, form=form) for form in ("commuting", "exact")),
        *(trpl.torch.FrobeniusProjection(0.03, 0.01, whitened=whitened) for whitened in (False, True)),
        trpl.torch.JointKLProjection(0.03),
    ]
    for make, scale in scales.items():
        for layer in layers:
            for here in (engines.suits_numpy, lambda tensors: False):
                with mock.patch.object(engines, "suits_numpy", here):
                    leaves = [torch.tensor(x, requires_grad=True) for x in (means[0], scale[0], means[1], scale[1])]
                    p, q = make(*leaves[:2]), make(*leaves[2:])
                    projected = layer(p, q)
                    sum(x.sum() for x in projected).backward()
                    layer.audit(p, projected, q)
                    layer.penalty(p, projected)
    try:
        diagonal.solve(engines.NUMPY, means[0], means[0][:, :2], np.asarray(0.1), None, whole=False)
    except jaxtyping.TypeCheckError:
        print(f"{num} functions checked")
        return
    raise SystemExit("a wrong shape went unnoticed")


if __name__ == "__main__":
    main()
