"""Networks from observation to distribution (`networks`, JAX), and the same weights acting in NumPy (`acting`)."""

from trpl.policies.acting import Policy, load_policy

__all__ = ["Policy", "load_policy"]
