"""Exceptions a caller may want to catch."""


class ConvergenceError(RuntimeError):
    """A numerical solve did not reach its tolerance, or its result is not finite."""


class RecordError(ValueError):
    """A run folder cannot be read, or its runs do not belong together; the message says where, or which setting."""


class ConfigError(ValueError):
    """A setting that does not exist, does not fit the method, or is out of range."""


class CheckpointError(RuntimeError):
    """No sound checkpoint where one was needed."""


class RunError(RuntimeError):
    """A run folder that cannot be used as asked: in use, already there, or not a run."""


class ExportError(ValueError):
    """A policy that cannot be written in the format asked for, or a file that does not act as the policy does."""
