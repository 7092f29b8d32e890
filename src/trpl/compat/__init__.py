"""Interfaces of other packages, implemented by trpl."""
