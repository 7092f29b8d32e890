"""Find a solution without autodiff, then attach its derivative: one autograd node per call.

The entry point is `attach(problem, inputs)`; `trpl.implicit.for_torch` and `trpl.implicit.for_jax` are its adapters.
"""

from trpl.implicit.attaching import attach, multipliers
from trpl.implicit.problems import NO_FORWARD, NO_SECOND, Like, Problem, Saved, Signature, Solved

__all__ = ["NO_FORWARD", "NO_SECOND", "Like", "Problem", "Saved", "Signature", "Solved", "attach", "multipliers"]
