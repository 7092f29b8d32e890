"""Adapters to other libraries: no maths, one seam each, and each host is imported in its own module only."""
