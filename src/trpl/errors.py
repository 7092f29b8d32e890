"""Exceptions a caller may want to catch."""


class ConvergenceError(RuntimeError):
    """A numerical solve did not reach its tolerance, or its result is not finite."""


class ConfigError(ValueError):
    """A setting that does not exist, does not fit the method, or is out of range."""


class UsageError(ValueError):
    """Words on the command line that do not fit the command."""


class RunError(RuntimeError):
    """A run folder that cannot be used as asked: in use, already there, or not a run."""


class RecordError(ValueError):
    """Records of a run are damaged, or do not belong together; the message says where, or which setting."""


class CheckpointError(RuntimeError):
    """No sound checkpoint where one was needed."""


class MissingExtraError(ImportError):
    """An optional part of trpl is not installed; the message says how to install it."""


class UnknownEnvironmentError(ValueError):
    """A name under which no environment is registered."""


class UnsupportedSpaceError(ValueError):
    """An observation or action space that policies on vectors cannot serve."""


class FaultyEnvironmentError(RuntimeError):
    """An environment raised, or returned something that is not an observation or a reward."""


class ReplayError(RuntimeError):
    """Doing an episode again did not lead to the same observation: the environment is not deterministic."""


class RenderingError(RuntimeError):
    """The environment cannot be drawn here."""


class ExportError(ValueError):
    """A policy that cannot be written in the format asked for, or a file that does not act as the policy does."""
