"""XLA's compilation settings. Nothing here imports JAX, which reads them once on import."""

import os
import socket
from pathlib import Path

ONE_THREAD = "--xla_cpu_multi_thread_eigen=false"


def one_thread_flags() -> str:
    """Return XLA_FLAGS with one thread, unless they set the number of threads already.

    At these sizes XLA's thread pool costs more than it gains, and runs share the machine.

    Returns:
        The value of the variable.
    """
    flags = os.environ.get("XLA_FLAGS", "")
    return flags if "xla_cpu_multi_thread_eigen" in flags else f"{flags} {ONE_THREAD}".strip()


def cache_variables(folder: str | Path) -> dict[str, str]:
    """Return the variables that make JAX cache compiled code, separately for each machine.

    Compiling takes seconds and is the same for every seed; JAX detects truncated entries and compiles them again.

    Args:
        folder: The cache's folder.

    Returns:
        Variables by name.
    """
    return {
        "JAX_COMPILATION_CACHE_DIR": str(Path(folder, socket.gethostname())),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }


def prepare_jax() -> None:
    """Restrict XLA to one thread and cache compiled code across processes; call before JAX is imported.

    The cache is in the user's cache folder; JAX_COMPILATION_CACHE_DIR names another, or disables it if empty.
    """
    os.environ["XLA_FLAGS"] = one_thread_flags()
    caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    for name, value in cache_variables(Path(caches, "trpl", "compiled")).items():
        os.environ.setdefault(name, value)
