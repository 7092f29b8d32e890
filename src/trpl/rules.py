"""Functions with a derivative written by hand, for each framework.

Like `trpl.backend` this knows which frameworks exist; the maths gives a rule and calls it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np

from trpl import backend
from trpl.backend import as_numpy, as_tensor, is_jax, is_torch, namespace, namespace_of_torch, quiet

Array = Any


def _of_one_kind(inputs: tuple[Array, ...]) -> tuple[Array, ...]:
    """Tensors as they are, or all as NumPy's arrays if some are: then `numbers` has found that faster."""
    return as_numpy(*inputs) if any(isinstance(x, np.ndarray | np.generic) for x in inputs) else inputs


class Rule:
    """A function with its derivative written by hand.

    `forward(*inputs) -> (output, *residuals)`, all new arrays, and `backward(inputs, outputs, cotangent, needed)` ->
    one cotangent for each input, of the broadcast batch shape, or None where `needed` says that nobody asks. Leading
    axes of the inputs are as many and broadcast. First derivatives only: asking for a second one is an error, not a
    wrong number.
    """

    every: ClassVar[list[Rule]] = []

    def __init__(
        self, forward: Callable[..., tuple[Array, ...]], backward: Callable[..., Sequence[Array | None]]
    ) -> None:
        self.forward, self.backward = forward, backward
        self.for_torch: Callable[..., tuple[Array, ...]] | None = None
        self.for_eager: Callable[..., Array] | None = None
        self.for_jax: Callable[..., Array] | None = None
        Rule.every.append(self)

    def __call__(self, *inputs: Array) -> Array:
        if is_torch(inputs[0]):
            torch = sys.modules["torch"]
            transformed = torch._C._are_functorch_transforms_active()
            wanted = torch.is_grad_enabled() and any(is_torch(x) and x.requires_grad for x in inputs)
            if not transformed and not wanted:
                arrays = _of_one_kind(inputs)
                with quiet(arrays[0]):
                    return as_tensor(self.forward(*arrays)[0], "C")
            if self.for_torch is None or self.for_eager is None:
                self.for_torch, self.for_eager = _torch_functions(self)
            if transformed or torch.compiler.is_compiling():
                return self.for_torch(*inputs)[0]
            return self.for_eager(*inputs)
        if is_jax(inputs[0]):
            if self.for_jax is None:
                self.for_jax = _jax_function(self)
            return self.for_jax(*inputs)
        return self.forward(*inputs)[0]


def prepare_torch() -> None:
    """Import and build now what `torch.compile` can call but not define: the namespace and the autograd functions."""
    namespace_of_torch()
    for rule in Rule.every:
        rule.for_torch, rule.for_eager = _torch_functions(rule)


def _sum_to(x: Array | None, shape: tuple[int, ...]) -> Array | None:
    """Sum the broadcast leading axes away, so that a cotangent has its input's shape."""
    if x is None or tuple(x.shape) == tuple(shape):
        return x
    axes = tuple(i for i, (have, want) in enumerate(zip(x.shape, shape, strict=True)) if have != want)
    return namespace(x).sum(x, axis=axes, keepdims=True)


NO_SECOND = "trpl: projections have first derivatives only; a second derivative was asked for"


def _torch_functions(rule: Rule) -> tuple[Callable[..., tuple[Array, ...]], Callable[..., Array]]:
    """The rule for `torch.compile` and `torch.func`, and for eager code, where the older form of a function is called
    in half the time because it need not look at its own signature."""
    import torch

    rule_forward, rule_backward = rule.forward, rule.backward

    class Refusing(torch.autograd.Function):
        """A gradient that depends on the inputs, whose own derivative is an error."""

        generate_vmap_rule = True

        @staticmethod
        def forward(gradient, *inputs):
            return gradient.clone()

        @staticmethod
        def setup_context(ctx, inputs, output):
            pass

        @staticmethod
        def backward(ctx, cotangent):
            raise RuntimeError(NO_SECOND)

    class Eager(torch.autograd.Function):
        @staticmethod
        def forward(ctx, *inputs):
            arrays = _of_one_kind(inputs)
            ctx.by_numpy = arrays is not inputs
            with quiet(arrays[0]):
                outputs = rule_forward(*arrays)
            if ctx.by_numpy:
                inputs = tuple(map(as_tensor, inputs))
                outputs = (as_tensor(outputs[0], "C"), *map(as_tensor, outputs[1:]))
            ctx.save_for_backward(*inputs, *outputs)
            ctx.set_materialize_grads(False)
            return outputs[0]

        @staticmethod
        def backward(ctx, cotangent):
            return Differentiable.backward(ctx, cotangent, by_numpy=ctx.by_numpy)

    class Differentiable(torch.autograd.Function):
        @staticmethod
        def forward(*inputs):
            return rule_forward(*inputs)

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(*inputs, *output)
            ctx.mark_non_differentiable(*output[1:])
            ctx.set_materialize_grads(False)

        @staticmethod
        def backward(ctx, cotangent, *_, by_numpy=False):
            num_inputs = len(ctx.needs_input_grad)
            if cotangent is None:
                return (None,) * num_inputs
            saved = ctx.saved_tensors

            def gradients() -> tuple:
                # The gradient of a sum is one number seen many times; batched products of such views are slow.
                arrays, given = saved, cotangent.contiguous()
                if by_numpy and backend.suits_numpy((given,)):
                    *arrays, given = as_numpy(*saved, given)
                inputs, outputs = arrays[:num_inputs], arrays[num_inputs:]
                with quiet(given):
                    found = rule_backward(inputs, outputs, given, ctx.needs_input_grad)
                    found = [_sum_to(g, x.shape) for g, x in zip(found, inputs, strict=True)]
                if arrays is saved:
                    return tuple(found)
                # The cotangent itself is not ours: who gets it must see that others have it too.
                return tuple(cotangent if g is given else None if g is None else as_tensor(g, "C") for g in found)

            if not torch.is_grad_enabled() or torch.compiler.is_compiling():
                return gradients()
            with torch.no_grad():  # someone keeps this gradient's graph
                found = gradients()
            return tuple(None if g is None else Refusing.apply(g, cotangent, *saved[:num_inputs]) for g in found)

        @staticmethod
        def vmap(info, in_dims, *inputs):
            """Leading axes are a batch already: one more in front."""
            moved = (
                x.unsqueeze(0) if dim is None else x.movedim(dim, 0) for x, dim in zip(inputs, in_dims, strict=True)
            )
            output = Differentiable.apply(*moved)
            output = tuple(x.expand(info.batch_size, *x.shape[1:]) for x in output)
            return output, (0,) * len(output)

    return Differentiable.apply, Eager.apply


def _jax_function(rule: Rule) -> Callable[..., Array]:
    import jax

    @jax.custom_vjp
    def once(cotangent, *inputs):
        return cotangent

    def refuse(*_):
        raise TypeError(NO_SECOND)

    once.defvjp(refuse, refuse)

    @jax.custom_vjp
    def differentiable(*inputs):
        return rule.forward(*inputs)[0]

    def forward(*inputs):
        outputs = rule.forward(*inputs)
        return outputs[0], (inputs, outputs)

    def backward(saved, cotangent):
        inputs, outputs = saved
        found = rule.backward(inputs, outputs, once(cotangent, *inputs), (True,) * len(inputs))
        return tuple(_sum_to(g, x.shape) for g, x in zip(found, inputs, strict=True))

    differentiable.defvjp(forward, backward)
    return differentiable


first_order = Rule(lambda x: (x * 1.0,), lambda inputs, outputs, cotangent, needed: (cotangent,))
"""The identity, through which a second derivative is refused: for values whose first derivative alone is right."""
