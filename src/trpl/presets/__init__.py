"""Hyperparameters by method and task, after the tables of the paper."""

from trpl.presets.lookup import AS_RELEASED, preset
from trpl.presets.sweeps import named_sweeps

__all__ = ["AS_RELEASED", "named_sweeps", "preset"]
