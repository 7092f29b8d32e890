"""Interfaces of other packages, served by trpl."""
