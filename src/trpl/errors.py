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


class ExportError(ValueError):
    """A policy that cannot be written in the format asked for, or a file that does not act as the policy does."""
