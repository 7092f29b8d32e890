"""The settings of a run, with their types, defaults, help, ranges and search ranges."""

from trpl.settings.config import Config, PolicyEpochs
from trpl.settings.fields import setting
from trpl.settings.search import Choice, Real, Whole

__all__ = ["Choice", "Config", "PolicyEpochs", "Real", "Whole", "setting"]
