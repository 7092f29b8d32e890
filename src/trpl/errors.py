"""Exceptions a caller may want to catch."""


class ConvergenceError(RuntimeError):
    """A numerical solve did not reach its tolerance, or its result is not finite."""
