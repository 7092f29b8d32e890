"""Exceptions a caller may want to catch."""


class ConvergenceError(RuntimeError):
    """A numerical solve did not reach its tolerance, or its result is not finite."""


class ConfigError(ValueError):
    """A setting does not exist, does not fit the method, or is out of range."""


class UsageError(ValueError):
    """Invalid arguments on the command line."""


class RunError(RuntimeError):
    """A run folder cannot be used: it is in use, already exists, or is not a run."""


class RecordError(ValueError):
    """Records of a run are damaged or inconsistent; the message says where, or which setting."""


class CheckpointError(RuntimeError):
    """There is no sound checkpoint."""


class MissingExtraError(ImportError):
    """An optional part of trpl is not installed; the message says how to install it."""


class UnknownEnvironmentError(ValueError):
    """No environment is registered under a name."""


class UnsupportedSpaceError(ValueError):
    """No policy supports an observation or action space."""


class FaultyEnvironmentError(RuntimeError):
    """An environment raised, hung, or returned something that is not an observation or a reward."""


class ReplayError(RuntimeError):
    """A replayed episode did not lead to the same observation: the environment is not deterministic."""


class RenderingError(RuntimeError):
    """The environment cannot be rendered here."""


class ExportError(ValueError):
    """A policy cannot be written in a format, or a file does not act as the policy does."""
