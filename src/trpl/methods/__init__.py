"""Methods: each is one value that says everything about it, and a registry of them that everything else reads."""

from trpl.methods.method import LayerSpec, Method, Style
from trpl.methods.registry import find, methods, names, register

__all__ = ["LayerSpec", "Method", "Style", "find", "methods", "names", "register"]
