"""Adapters to other libraries, without maths; each host is imported only in its own module."""
