"""Methods: one value per method holds everything about it, in a registry that all other code reads."""

from trpl.methods.method import LayerSpec, Method, Style
from trpl.methods.registry import find, methods, names, register

__all__ = ["LayerSpec", "Method", "Style", "find", "methods", "names", "register"]
